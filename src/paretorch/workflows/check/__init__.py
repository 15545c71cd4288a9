"""`pare check`: what is at a path, whether it is as it was written, and what can be saved of it. Nothing is changed or run."""

from pathlib import Path

from paretorch.errors import ConfigError
from paretorch.workflows.check.record import Checked, Finding
from paretorch.workflows.check.runs import check_artefact, check_run, check_tensors
from paretorch.workflows.check.shrinks import check_shrink
from paretorch.workflows.check.storages import check_storage, check_tuning, is_storage
from paretorch.workflows.check.studies import check_results, check_runs
from paretorch.workflows.check.tickets import check_tickets

__all__ = ["Checked", "Finding", "check"]


def check(path: Path) -> Checked:
    """Look at a run folder, a checkpoint, the folder of a study, of tickets, of a search or of a shrink, or a `.pare` file."""
    if path.is_dir():
        return _folder(path)
    if path.suffix == ".pare":
        found = Checked(path, "an artefact")
        check_artefact(path, found)
        if not found.findings:
            raise ConfigError(f"there is no file {path}")
        return found
    if not path.exists():
        raise ConfigError(f"there is no {path}")
    if is_storage(path):
        return check_storage(path)
    if path.suffix == ".pt":
        found = Checked(path, "a file of tensors")
        content = check_tensors(path, found, path.name)
        if content is not None:
            parts = ", ".join(map(str, content)) if isinstance(content, dict) else type(content).__name__
            found.add(path.name, "ok", f"it holds {parts[:200]}")
        return found
    raise ConfigError(f"{path} is nothing that pare check knows: give a run folder, a .pare, .pt, .journal or .db file")


def _folder(path: Path) -> Checked:
    if (path / "recipe.json").exists() and not (path / "config.json").exists():
        return check_tickets(path)
    if (path / "shrink.json").exists():
        return check_shrink(path)
    if (path / "trials.journal").exists() or (path / "tuning.json").exists():
        return check_tuning(path)
    run = ("config.json", "checkpoint.pt", "checkpoint.previous.pt", "metrics.jsonl", "result.json", "model.pare")
    if any((path / name).exists() for name in run):
        return check_run(path)
    if any(path.glob("*/config.json")):
        return check_runs(path)
    if any(path.glob("*-seed*.json")) or (path / "summary.json").exists():
        return check_results(path)
    raise ConfigError(f"{path} holds no run, no searches, no trials and no results")
