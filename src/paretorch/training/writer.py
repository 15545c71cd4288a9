"""Writes the checkpoints of several ranks while training goes on.

Training waits while the tensors are copied, on GPUs into pinned memory; a thread writes the copies, one checkpoint at a time. What
torch.distributed.checkpoint calls `async_save` does the same for its own files. Here checksums and the rename that publishes a
checkpoint follow its files, all ranks have to agree on each, and a failure has to reach training: so the thread is this one's own.
"""

import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from paretorch.errors import PareError, warn
from paretorch.support.sharded import is_sharded, local
from paretorch.training import shards
from paretorch.training.checkpoint import Checkpoint
from paretorch.training.ranks import Ranks

_LAST = 10.0  # seconds to write what is under way once training has failed: a rank that is gone may be waited for


class Writer:
    """Writes checkpoints in the background; at the end of the context the last one is there.

    A failure is raised at the next checkpoint or at the end, on all ranks.

    Args:
        run: The folder of the run.
        ranks: Who trains; all of them make a writer.
    """

    def __init__(self, run: Path, ranks: Ranks) -> None:
        self._run, self._ranks = run, ranks.apart()
        self._kept: dict[str, Tensor] = {}
        self._mesh: Any = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, content: Checkpoint) -> None:
        """Copy a checkpoint and begin to write it, once the one before is written; raises what went wrong with that one."""
        self.finish()
        parts = shards.take_apart(content, self._ranks)
        copies = shards.Parts(self._copied(parts.tensors), parts.plain, parts.random)
        # A daemon: a thread that waits for a rank that is gone does not keep the process.
        self._thread = threading.Thread(target=self._write, args=(copies,), daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait for the checkpoint that is being written; raises what went wrong with it."""
        if self._thread is not None:
            self._thread.join()
        self._thread, error, self._error = None, self._error, None
        if error is not None:
            raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, KeyboardInterrupt):
            self.finish()
            return
        if self._thread is not None:
            self._thread.join(_LAST)
        if isinstance(self._error, PareError) and self._error is not error:
            warn(str(self._error))

    def _write(self, parts: shards.Parts) -> None:
        try:
            shards.write(self._run, parts, self._ranks)
        except BaseException as error:  # raised in the thread that trains
            self._error = error

    def _copied(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Copies in the memory of this machine, which later copies are written over."""
        on_gpu = False
        found = {}
        for name, tensor in tensors.items():
            own, kept = local(tensor), self._kept.get(name)
            if kept is None or kept.shape != own.shape or kept.dtype != own.dtype:
                kept = self._kept[name] = torch.empty_like(own, device="cpu", pin_memory=own.is_cuda)
            kept.copy_(own, non_blocking=own.is_cuda)
            on_gpu |= own.is_cuda
            found[name] = self._sharded_as(kept, tensor) if is_sharded(tensor) else kept
        if on_gpu:
            torch.cuda.current_stream().synchronize()
        return found

    def _sharded_as(self, part: Tensor, tensor: Any) -> Tensor:
        """This rank's part of a sharded tensor, as a part of one on the CPUs."""
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import DTensor

        if self._mesh is None:
            self._mesh = DeviceMesh.from_group(self._ranks.group, "cpu")
        return DTensor.from_local(
            part, self._mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
        )
