"""One parameter with its state, seen as flat, local, real tensors that share one memory order."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paretorch.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

State = MutableMapping[str, Any]
_ORDINARY = (Tensor, torch.nn.Parameter)


class Leaf:
    """Views of a parameter, its m and its v, made once and valid until one of them moves to other memory.

    Complex tensors are seen as pairs of reals. A DTensor is seen as its local shard, and `shards` names the process
    groups over which the shards of one parameter are spread (empty for ordinary and for replicated parameters).
    """

    def __init__(self, param: Tensor, state: State, index: int) -> None:
        self.param, self.state, self.index = param, state, index
        self._ordinary = type(param) in _ORDINARY
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
        self.shards = _shard_groups(param)
        self.version = self.v._version

    def current(self) -> bool:
        """Whether the views still show the parameter and its state."""
        near = self.param if self._ordinary else _local(self.param)
        state = self.state
        return (
            near.data_ptr() == self._address and state.get("exp_avg") is self._m and state.get("exp_avg_sq") is self._v
        )

    def gradient(self) -> Tensor | None:
        """The gradient in the memory order of the parameter, or None."""
        grad = self.param.grad
        if grad is None:
            return None
        if type(grad) is Tensor and grad.layout is torch.strided and self._dense and grad.stride() == self._stride:
            return grad.as_strided(self._length, (1,))  # as nearly always: the rest would say the same, slower
        if grad.layout is not torch.strided:
            raise ConfigError("AvaGrad and its kin take no sparse gradients: build the embedding with sparse=False.")
        return self._flat(self._ordered(_real(_local(grad).resolve_conj())))

    def plain_gradient(self) -> Tensor | None:
        """The gradient in the memory order and dtype of the parameter, in any shape: for those who need its address."""
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
        # A parameter with gaps in memory (a slice, say) is processed in its own shape: correct, only not in pieces.
        if not self._dense:
            return tensor
        return tensor.as_strided((tensor.numel(),), (1,))


def new_state(param: Tensor, dtype: torch.dtype | None) -> dict[str, Tensor]:
    """m₀ = v₀ = 0, real, at least fp32 unless `dtype` says otherwise, laid out like the parameter."""
    like = _real(param)
    dtype = dtype or (torch.float64 if like.dtype == torch.float64 else torch.float32)
    # preserve_format keeps the strides of a dense tensor; of any other it makes a compact copy.
    return {key: torch.zeros_like(like, dtype=dtype) for key in ("exp_avg", "exp_avg_sq")}


def check_gradient(param: Tensor, optimizer: str) -> None:
    """Refuse what can never be stepped, before it gets a state."""
    if param.grad is not None and param.grad.layout is not torch.strided:
        raise ConfigError(f"{optimizer} takes no sparse gradients: build the embedding with sparse=False.")
    if not (param.is_floating_point() or param.is_complex()):
        raise ConfigError(f"{optimizer} steps floating point and complex parameters, not {param.dtype}.")


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one block of memory without gap or overlap, in whatever order."""
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
    if type(tensor) in _ORDINARY:
        return tensor
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def _shard_groups(param: Tensor) -> tuple[ProcessGroup, ...]:
    placements = getattr(param, "placements", None)
    if placements is None:
        return ()
    if any(placement.is_partial() for placement in placements):
        raise ConfigError("A parameter with partial placement has no value of its own: shard or replicate it.")
    mesh: Any = param.device_mesh  # type: ignore[attr-defined]
    return tuple(mesh.get_group(i) for i, placement in enumerate(placements) if not placement.is_replicate())
