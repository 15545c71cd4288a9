"""The command `pare`. Exit codes: 0 done, 1 the run failed, 2 the command was wrong, 130 interrupted."""


def main() -> None:
    """Entry point; everything is imported here, so that `import paretorch` stays light."""
    from paretorch.cli.app import app

    app()
