"""`pare compare`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paretorch.cli.lines import say
from paretorch.errors import ArtefactError, ConfigError

if TYPE_CHECKING:
    from paretorch.report.comparison import Run

_PAGE = Path("compare.html")
_NUMBERS = ("accuracy", "bytes", "sparsity", "bits", "bits_on_disk", "parameters", "epochs")


def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, and files such as model.pare, with an accuracy in their summary.")
    ],
    html: Annotated[Path, typer.Option(help="Write the page here.")] = _PAGE,
) -> None:
    """Compare several runs on one page: curves, and accuracy against bytes on disk.

    Examples:

        pare compare runs/dense runs/small runs/smaller

        pare compare runs/* --html results.html
    """
    from paretorch.report.comparison import points_of, write_comparison
    from paretorch.report.pareto import as_text

    if len(set(map(Path.resolve, runs))) != len(runs):
        raise ConfigError("a run is given twice: name each once")
    found = [_run(path, name) for path, name in zip(runs, _names(runs), strict=True)]
    write_comparison(html, found)
    if points := points_of(found):
        typer.echo(as_text(points))
    for run in found:
        if not run.numbers:
            say(f"{run.name} is not finished: its curves are on the page")
    say(f"The page is {html}")


def _names(paths: list[Path]) -> list[str]:
    """The last part of each path; more parts if several have the same last one."""
    whole = [path.resolve() for path in paths]
    for count in range(1, max(len(path.parts) for path in whole) + 1):
        names = ["/".join(path.parts[-count:]) for path in whole]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in whole]


def _run(path: Path, name: str) -> "Run":
    from paretorch.deploy.artefact import open_artefact
    from paretorch.report.comparison import Run
    from paretorch.training.finish import read_result
    from paretorch.training.folder import read_history

    if not path.exists():
        raise ConfigError(
            f"{path} is not there: give run folders, such as those of pare train --out, or model.pare files"
        )
    folder, file = (path, path / "model.pare") if path.is_dir() else (path.parent, path)
    rows = read_history(folder) if path.is_dir() else []
    result = read_result(folder) if path.is_dir() else None
    if result is not None:
        accuracy = result.get("final_test_accuracy", result.get("test_accuracy"))
        return Run(name, _kind(folder), rows, _chosen({**result, "accuracy": accuracy}))
    if file.is_file():
        summary = open_artefact(file)[1].get("summary", {})
        return Run(name, "file", rows, _chosen({**summary, "bytes": file.stat().st_size}))
    if not rows:
        raise ConfigError(f"{path} holds no run: give a folder with metrics.jsonl or model.pare")
    return Run(name, _kind(folder), rows)


def _chosen(numbers: dict[str, Any]) -> dict[str, Any]:
    return {name: numbers[name] for name in _NUMBERS if numbers.get(name) is not None}


def _kind(folder: Path) -> str:
    """The network of a run."""
    from paretorch.support.files import read_json
    from paretorch.training.recipe_values import by_place

    path = folder / "config.json"
    if not path.is_file():
        return "run"
    try:
        return str(by_place(dict(read_json(path))["recipe"])["network"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtefactError(f"{path} is not the configuration of a run; give another folder") from error
