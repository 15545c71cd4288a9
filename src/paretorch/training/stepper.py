"""The steps of an epoch: eager anywhere, or compiled and replayed from one CUDA graph on a GPU.

One step is forward, backward, `optimizer.step()`, `plan.step()` and the bookkeeping. When it is captured, everything it
depends on lies on the device: the epoch's batches and learning rates in fixed buffers, and a counter that says which
row is next. A replay then needs no word from the host, and losses are read once per epoch.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from paretorch.core.step.recorded import copy_code
from paretorch.training.optimizers import set_rate
from paretorch.training.tasks import Batch, Stream, Task

if TYPE_CHECKING:
    from paretorch.core.plan import Plan

_WARMUP = 5


class Stepper:
    """Takes optimizer steps one by one through the batches of an epoch.

    Before the capture, five real steps run on the stream it will use: they compile the step, choose kernels, allocate
    the optimizer's state, and count as training. `release` forgets graph and compilation when the model has changed.

    samples: a batch is taken in so many parts, each with noise of its own, until decisions are rounded and there is none.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        optimizer: torch.optim.Optimizer,
        plan: "Plan | None",
        *,
        device: torch.device,
        rate: Tensor | None = None,
        compile: bool = False,
        samples: int = 1,
    ) -> None:
        self._model, self._task, self._optimizer, self._plan = model, task, optimizer, plan
        self._compile, self._samples, self._device = compile, samples, device
        self._rate = rate
        self._batches: Batch = ()
        self._coming: Iterator[Batch] | None = None  # of an epoch that is not in memory
        self._rates = torch.zeros(task.steps, device=device)
        self._host_rates = [0.0] * task.steps
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._record = torch.zeros(task.steps, 1 + len(task.tallies), device=device)
        self._stream: Any = torch.cuda.Stream(device) if rate is not None else None
        self._graph: Any = None
        self._warm = 0
        self._forward: Any = None
        self.release()

    def release(self) -> None:
        """Compile and capture anew at the next steps."""
        self._graph, self._warm = None, 0
        self._forward = torch.compile(copy_code(self._losses), dynamic=False) if self._compile else self._losses

    def begin(
        self, batches: "Batch | Stream", rates: list[float], start: int = 0, record: Tensor | None = None
    ) -> None:
        """Lay an epoch out: its batches, a learning rate for each step, and what earlier steps of it recorded."""
        if isinstance(batches, tuple):
            self._lay_out(batches)
        else:
            self._coming = batches.begin(start)
        self._host_rates = rates
        self._rates.copy_(torch.tensor(rates))
        self._position.fill_(start)
        self._record.zero_()
        if record is not None:
            self._record[: len(record)].copy_(record)

    def _lay_out(self, batches: Batch) -> None:
        if self._batches and all(new.shape == old.shape for new, old in zip(batches, self._batches, strict=True)):
            for new, old in zip(batches, self._batches, strict=True):
                old.copy_(new, non_blocking=True)
        else:
            # Copies: later epochs are written over them, and the task's may be views of its own data.
            self._batches = tuple(rows.to(self._device, copy=True) for rows in batches)
            self._graph, self._warm = None, 0

    def step(self, index: int) -> None:
        """Take the step `index` of the epoch."""
        if self._coming is not None:  # the one batch that there is lies where a captured step finds it
            self._lay_out(tuple(rows.unsqueeze(0) for rows in next(self._coming)))
        if self._rate is None:
            set_rate(self._optimizer, self._host_rates[index])
            self._update()
        elif self._warm < _WARMUP:
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                self._update()
            torch.cuda.current_stream().wait_stream(self._stream)
            self._warm += 1
        else:
            if self._graph is None:
                self._capture()
            self._graph.replay()

    def record(self, stop: int, start: int = 0) -> Tensor:
        """Loss and tallies of the steps `start` to `stop` of the epoch, on the host."""
        return self._record[start:stop].to("cpu", copy=True)

    def _losses(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        loss, tallies = self._task.loss(self._model, batch)
        return loss, torch.stack([one.detach().float() for one in (loss, *tallies)]).unsqueeze(0)

    def _update(self) -> None:
        if self._rate is not None:
            torch.index_select(self._rates, 0, self._position, out=self._rate.view(1))
        # Picked outside of what is compiled: its shapes then do not depend on the length of the epoch.
        batch = tuple(self._pick(rows) for rows in self._batches)
        row = self._gradients(batch)
        self._optimizer.step()
        if self._plan is not None:
            self._plan.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._record.index_copy_(0, self._position, row)
        self._position.add_(1)

    def _pick(self, rows: Tensor) -> Tensor:
        return rows.squeeze(0) if self._coming is not None else rows.index_select(0, self._position).squeeze(0)

    def _gradients(self, batch: Batch) -> Tensor:
        """Add up the gradients of the mean loss; returns loss and tallies."""
        row: Tensor
        if self._samples == 1 or self._plan is None or self._plan.is_hard:
            loss, row = self._forward(*batch)
            loss.backward()
            return row
        from paretorch.methods.precision.noisy import noise_samples

        parts = [rows.chunk(self._samples) for rows in batch]
        found = []
        for sample in noise_samples(self._model, self._samples):
            loss, row = self._forward(*(part[sample] for part in parts))
            (loss / self._samples).backward()
            found.append(row)
        return torch.cat(found).mean(0, keepdim=True)

    def _capture(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Capturing records the step without taking it; the caller replays it for that step.
        with torch.cuda.graph(graph, stream=self._stream):
            self._update()
        self._graph = graph
