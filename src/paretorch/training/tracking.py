"""The numbers of metrics.jsonl for TensorBoard too: `pare train --tensorboard`, then `tensorboard --logdir runs`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paretorch.errors import MissingExtraError


class Tracker:
    """Writes into the folder `tensorboard` of a run; what a run that was stopped had told after `step` is taken back."""

    def __init__(self, folder: Path, step: int) -> None:
        require_tensorboard()
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def add(self, row: Mapping[str, Any]) -> None:
        """The numbers of a row by name, at its step."""
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, row["step"])
        self._writer.flush()


def require_tensorboard() -> None:
    """Refuse at once where the package is missing, before anything is trained."""
    try:
        import tensorboard  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("--tensorboard needs tensorboard: pip install 'paretorch[track]'.") from error
