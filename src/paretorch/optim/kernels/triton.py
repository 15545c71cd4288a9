"""The update on a GPU by one launch of the Triton kernel in `triton_kernel.py` per bucket. The host never waits.

The kernel reads the addresses of all tensors from `AddressTable`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from paretorch.optim.hyperparameters import Hyperparameters, Scalar
from paretorch.optim.kernels.bucket import Bucket, Gradients, stream_key
from paretorch.optim.kernels.parameter import ParameterView
from paretorch.support.addresses import AddressTable

BLOCK = 1024
"""Elements that a program holds in registers at a time, by WARPS warps: two 16 byte loads per thread and array."""
WARPS = 4
MAX_CHUNK = 1 << 16
PROGRAMS = 4096
"""About how many programs share the work, if that needs chunks neither shorter than BLOCK nor longer than MAX_CHUNK."""
_UPDATE, _PREVIEW, _MEASURE = 0, 1, 2


class TritonBucket(Bucket):
    """Steps dense parameters of at most 32 bits on one GPU."""

    can_count_steps = True
    handles_grad_scaler = True
    writes_are_versioned = False

    def __init__(self, views: list[ParameterView], seed: int) -> None:
        import triton.language as tl

        from paretorch.optim.kernels.triton_kernel import adaptive_step

        super().__init__(views, seed)
        types = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
        self._kernel, self._types = adaptive_step, (types[views[0].p.dtype], types[views[0].m.dtype])
        lengths = [view.p.numel() for view in views]
        self._chunk = _chunk_length(sum(lengths))
        owners = [(i, part) for i, length in enumerate(lengths) for part in range(-(-length // self._chunk))]
        self._programs = len(owners)
        self._chunks = torch.tensor(owners, dtype=torch.int32).view(-1, 2).T.contiguous().to(self.device)
        self._sums = torch.zeros(2, self._programs, dtype=torch.float64, device=self.device)
        self._result = torch.zeros(2, dtype=torch.float64, device=self.device)
        self._ticket = torch.zeros(1, dtype=torch.int32, device=self.device)
        self._unused = torch.zeros(1, device=self.device)
        addresses = ([getattr(view, name).data_ptr() for view in views] for name in "pmv")
        keys = ([stream_key(seed, view.index, moment) for view in views] for moment in (0, 1))
        self._table = AddressTable([*addresses, lengths, *keys], self.device, addressed=3)

    def gradients(self) -> Gradients:
        return [view.native_gradient() for view in self.views]

    def eta_sums(self) -> Tensor:
        return self._result

    def preview(self, grads: Gradients, hyper: Hyperparameters) -> Tensor:
        sums, result = torch.zeros_like(self._sums), torch.zeros_like(self._result)
        self._launch(_PREVIEW, grads, hyper, sums, result, None, 0.0)
        return result

    def _measure(self, hyper: Hyperparameters) -> None:
        self._launch(_MEASURE, [None] * len(self.views), hyper, self._sums, self._result, None, 0.0)

    def _update(self, grads: Gradients, hyper: Hyperparameters, total: Tensor | None, now: Scalar) -> None:
        self._launch(_UPDATE, grads, hyper, self._sums, self._result, total, now)

    def _launch(
        self,
        mode: int,
        grads: Gradients,
        hyper: Hyperparameters,
        sums: Tensor,
        result: Tensor,
        total: Tensor | None,
        now: Scalar,
    ) -> None:
        if self._programs == 0:
            return
        table, aligned = self._table.with_gradients([0 if g is None else g.data_ptr() for g in grads])
        rule, skipping = hyper.rule, hyper.found_inf is not None and mode != _MEASURE
        with self._on_device():
            self._kernel[(self._programs,)](
                table,
                self._chunks,
                sums,
                self._unused if total is None else total,
                result,
                self._ticket,
                hyper.lr,
                hyper.eps,
                now if isinstance(now, Tensor) else int(now),
                self._unused if hyper.grad_scale is None else hyper.grad_scale,
                self._unused if hyper.found_inf is None else hyper.found_inf,
                hyper.beta1,
                hyper.beta2,
                hyper.weight_decay,
                hyper.eta_scale,
                len(self.views),
                self._programs,
                P=self._types[0],
                S=self._types[1],
                MODE=mode,
                DELAYED=rule.delayed,
                NORMALISED=rule.normalised,
                DECOUPLED=rule.decoupled,
                DECAY=hyper.weight_decay != 0,
                MAXIMIZE=hyper.maximize,
                LR_ON_DEVICE=isinstance(hyper.lr, Tensor),
                EPS_ON_DEVICE=isinstance(hyper.eps, Tensor),
                NOW_ON_DEVICE=isinstance(now, Tensor),
                COUNTING=self.counts_steps and mode == _UPDATE,
                SCALED=hyper.grad_scale is not None,
                SKIPPING=skipping,
                ALIGNED=aligned,
                CHUNK=self._chunk,
                BLOCK=BLOCK,
                num_warps=WARPS,
            )

    def _on_device(self) -> AbstractContextManager[object]:
        if self.device.type != "cuda" or self.device.index == torch.cuda.current_device():
            return nullcontext()
        return torch.cuda.device(self.device)


def _chunk_length(elements: int) -> int:
    """A power of two: short enough that small networks fill the GPU, long enough that large ones need few sums."""
    wanted = 1 << max(0, elements // PROGRAMS - 1).bit_length()
    return min(max(wanted, BLOCK), MAX_CHUNK)
