"""The command `pare`. Exit codes: 0 done, 1 the run failed, 2 the command was wrong, 130 interrupted."""

import os

from paretorch.support.processes import end_with_parent


def main() -> None:
    """Entry point; everything is imported here, so that `import paretorch` stays light."""
    # For Python processes that others start for us (compilers of torch, trackers): no modules of the current folder there.
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    end_with_parent()
    try:
        from paretorch.cli.app import app
    except KeyboardInterrupt:  # torch takes seconds to import
        raise SystemExit(130) from None
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        raise SystemExit(f"pare: the command line needs {error.name}: pip install 'paretorch[cli]'") from None
    app()
