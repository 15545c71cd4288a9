"""One parameter with its optimizer state, as the kernels see it: flat, local, real tensors in one memory order.

`StepCounter` counts the steps of all parameters together.
"""

from __future__ import annotations

from collections.abc import Collection, MutableMapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paretorch.errors import ConfigError
from paretorch.optim.hyperparameters import Scalar

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

State = MutableMapping[str, Any]
_PLAIN_TYPES = (Tensor, torch.nn.Parameter)


class ParameterView:
    """Views of a parameter (`p`), its m and its v, made once and valid until one of them moves to other memory.

    Complex tensors become pairs of reals. A DTensor becomes its local shard.

    Args:
        param: the parameter.
        state: its optimizer state; moments in another memory order than the parameter's are replaced by ordered ones.
        index: its number in the optimizer, from which stochastic rounding derives its random numbers.
    """

    def __init__(self, param: Tensor, state: State, index: int) -> None:
        self.param, self.state, self.index = param, state, index
        self._is_plain = type(param) in _PLAIN_TYPES
        self._like = _real(_local(param))
        self._stride = self._like.stride()
        self._dense, self._length = is_dense(self._like), (self._like.numel(),)
        self.p = self._flat(self._like)
        dtype = torch.promote_types(state["exp_avg"].dtype, state["exp_avg_sq"].dtype)
        for key in ("exp_avg", "exp_avg_sq"):
            # A loaded state may have been saved in another memory format than the parameter has now, or in two dtypes.
            ordered = self._ordered(_local(state[key]).to(dtype))
            if ordered is not _local(state[key]):
                state[key] = ordered
        self._m, self._v = state["exp_avg"], state["exp_avg_sq"]
        self.m = self._flat(_local(self._m))
        self.v = self._flat(_local(self._v))
        self._address = self._like.data_ptr()
        self.shard_groups = _shard_groups(param)
        """The process groups that hold the other shards of the parameter; empty if it is not sharded."""
        self.v_version = self.v._version
        """Torch's version counter of v after the last write by the optimizer; any other value means an outside edit."""

    def is_current(self) -> bool:
        """Whether the views still show the parameter and its state."""
        local = self.param if self._is_plain else _local(self.param)
        state = self.state
        return (
            local.data_ptr() == self._address and state.get("exp_avg") is self._m and state.get("exp_avg_sq") is self._v
        )

    def gradient(self) -> Tensor | None:
        """The gradient, flat and in the memory order of the parameter, or None."""
        grad = self.param.grad
        if grad is None:
            return None
        if type(grad) is Tensor and grad.layout is torch.strided and self._dense and grad.stride() == self._stride:
            return grad.as_strided(self._length, (1,))  # a shortcut for nearly all gradients; the code below agrees
        if grad.layout is not torch.strided:
            raise ConfigError(
                "AvaGrad and its variants take no sparse gradients: build the embedding with sparse=False"
            )
        return self._flat(self._ordered(_real(_local(grad).resolve_conj())))

    def native_gradient(self) -> Tensor | None:
        """The gradient in the memory order and dtype of the parameter, in any shape, for kernels that read its address."""
        grad = self.param.grad
        if (
            type(grad) is Tensor
            and grad.layout is torch.strided
            and grad.dtype == self._like.dtype
            and grad.stride() == self._stride
            and not grad.is_neg()
        ):
            return grad
        flat = self.gradient()
        return None if flat is None else flat.to(self.p.dtype).resolve_neg()

    def _ordered(self, tensor: Tensor) -> Tensor:
        if not self._dense or _same_order(tensor, self._like):
            return tensor
        return torch.empty_like(self._like, dtype=tensor.dtype).copy_(tensor)

    def _flat(self, tensor: Tensor) -> Tensor:
        # A parameter with gaps in memory (a slice, for example) keeps its shape: correct, but not cut into chunks.
        if not self._dense:
            return tensor
        return tensor.as_strided((tensor.numel(),), (1,))


class StepCounter:
    """Counts steps on the host, or on the device if a captured graph must be able to count by itself.

    There is one count per device. The state of every parameter holds it under `step`, as in torch.optim.

    Args:
        views: all parameters, each with whether its count is on its device (`capturable`).
    """

    def __init__(self, views: list[tuple[ParameterView, bool]]) -> None:
        known = [float(view.state["step"]) for view, _ in views if "step" in view.state]
        start = max(known, default=0.0)
        self._counts: dict[torch.device, Tensor] = {}
        self._views = [view for view, _ in views]
        for view, on_device in views:
            device = view.p.device
            if device not in self._counts:
                home = device if on_device else torch.device("cpu")
                self._counts[device] = torch.full((), start, dtype=torch.float32, device=home)
            view.state["step"] = self._counts[device]

    def advance(self, found_inf: Tensor | None, by_kernel: Collection[torch.device] = ()) -> dict[torch.device, Scalar]:
        """Count one step and return the counts per device.

        Args:
            found_inf: of a gradient scaler; if it is 1, the step is skipped and not counted.
            by_kernel: devices whose kernel counts the step. Counts that are on these devices are not changed here.
        """
        if found_inf is not None:
            self._move_to_devices()
        now: dict[torch.device, Scalar] = {}
        for device, count in self._counts.items():
            if device in by_kernel and count.device == device:
                now[device] = count
                continue
            count += 1 if found_inf is None else 1 - found_inf.to(count.device, count.dtype).reshape(())
            now[device] = float(count) if count.device.type == "cpu" else count
        return now

    def _move_to_devices(self) -> None:
        # Only the device knows whether the step is skipped, and the host must not wait for the answer.
        if all(count.device == device for device, count in self._counts.items()):
            return
        self._counts = {device: count.to(device) for device, count in self._counts.items()}
        for view in self._views:
            view.state["step"] = self._counts[view.p.device]


def new_state(param: Tensor, dtype: torch.dtype | None) -> dict[str, Tensor]:
    """m₀ = v₀ = 0: real, in the memory order of the parameter, and at least fp32 unless `dtype` is given."""
    like = _real(param)
    dtype = dtype or (torch.float64 if like.dtype == torch.float64 else torch.float32)
    # preserve_format keeps the strides of a dense tensor; of any other it makes a compact copy.
    return {key: torch.zeros_like(like, dtype=dtype) for key in ("exp_avg", "exp_avg_sq")}


def check_gradient(param: Tensor, optimizer: str) -> None:
    """Raise `ConfigError` if the parameter or its gradient can never be stepped, before it gets a state."""
    if param.grad is not None and param.grad.layout is not torch.strided:
        raise ConfigError(f"{optimizer} takes no sparse gradients: build the embedding with sparse=False")
    if not (param.is_floating_point() or param.is_complex()):
        raise ConfigError(f"{optimizer} steps floating point and complex parameters, not {param.dtype}")


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one block of memory without gap or overlap, in any order."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _same_order(a: Tensor, b: Tensor) -> bool:
    if a.stride() == b.stride():
        return True
    return all(n == 1 or s == t for n, s, t in zip(a.shape, a.stride(), b.stride(), strict=True))


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _local(tensor: Tensor) -> Tensor:
    if type(tensor) in _PLAIN_TYPES:
        return tensor
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def _shard_groups(param: Tensor) -> tuple[ProcessGroup, ...]:
    placements = getattr(param, "placements", None)
    if placements is None:
        return ()
    if any(placement.is_partial() for placement in placements):
        raise ConfigError("A parameter with partial placement has no value of its own: shard or replicate it")
    mesh: Any = param.device_mesh  # type: ignore[attr-defined]
    return tuple(mesh.get_group(i) for i, placement in enumerate(placements) if not placement.is_replicate())
