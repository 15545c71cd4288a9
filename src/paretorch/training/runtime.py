"""Where and how a run is executed: device, compilation, checkpoints, progress; torch's generators and flags while it runs.

The generators and flags are the user's: training sets them while it runs, and restores them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from paretorch.support.checks import require_at_least, require_one_of


@dataclass(frozen=True)
class Runtime:
    """Where and how a run is executed; none of it belongs to the recipe, so a run may be resumed under another runtime.

    Args:
        root: Folder of the data sets; None: the zoo's own choice.
        download: Whether to fetch data that is missing.
        device: "cpu", "cuda", "cuda:1", or "auto": the first GPU, else the CPU.
        compile: Whether to use `torch.compile`, on a GPU only; None: if the run is so long that it pays.
        graph: Whether to capture one CUDA graph per step, on a GPU only.
        checkpoint_epochs: Write a checkpoint every so many epochs.
        checkpoint_steps: And every so many steps within an epoch; 0: none within.
        progress: "bar", "plain", "quiet", or "auto": a bar on a terminal, else one line per epoch.
        shard: Under torchrun, whether the ranks share weights, gradients and states out among them (FSDP2), rather than have
            all of them each (DDP).
        accumulate: Take the batch of a step in so many parts, one after another, so that less of it is in memory. Batch norms
            see a part at a time.
        workers: How many processes read images that stay on the disk; 0: none but this one; None: one per core, shared out among the
            ranks of a machine.
        track: Where to write the metrics too: "tensorboard", "wandb", "mlflow".
    """

    root: str | None = None
    download: bool = False
    device: str = "auto"
    compile: bool | None = None
    graph: bool = True
    checkpoint_epochs: int = 1
    checkpoint_steps: int = 0
    progress: str = "auto"
    track: tuple[str, ...] = ()
    shard: bool = False
    accumulate: int = 1
    workers: int | None = None

    def __post_init__(self) -> None:
        require_one_of("progress", self.progress, ("auto", "bar", "plain", "quiet"))
        require_at_least("checkpoint_epochs", self.checkpoint_epochs, 1)
        require_at_least("checkpoint_steps", self.checkpoint_steps, 0)
        require_at_least("accumulate", self.accumulate, 1)
        if self.workers is not None:
            require_at_least("workers", self.workers, 0)


@contextmanager
def own_random(device: torch.device) -> Iterator[None]:
    """Inside, seeds and draws from torch's global generators leave no trace outside."""
    before = torch.get_rng_state()
    on_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    on_apple = torch.mps.get_rng_state() if device.type == "mps" else None
    try:
        yield
    finally:
        torch.set_rng_state(before)
        if on_gpu is not None:
            torch.cuda.set_rng_state(on_gpu, device)
        if on_apple is not None:
            torch.mps.set_rng_state(on_apple)


@contextmanager
def fast_on_gpu(device: torch.device) -> Iterator[None]:
    """Inside, a GPU chooses its convolutions by trial and multiplies in TF32; elsewhere nothing changes."""
    if device.type != "cuda":
        yield
        return
    benchmark, precision = torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = benchmark
        torch.set_float32_matmul_precision(precision)
