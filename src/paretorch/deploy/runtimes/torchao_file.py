"""State dicts with torchao's tensors of 4 bits, which torch's own kernels multiply with on a CPU.

    W = Δ c,   c from −8 to 7 in half a byte each, Δ in bf16 for 32, 64 or 128 inputs (stored as fp32, the type of the other weights)

torchao's rounding gives each group a step and an offset from its smallest and largest value. Codes and steps here are those that the network was
trained on instead, with offsets of 0, so that the products are its weights, bit for bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paretorch.deploy.runtimes.read import Stored, read_stored
from paretorch.deploy.runtimes.registry import Runtime
from paretorch.errors import ConfigError
from paretorch.support.files import replacing_checked

_AT_ONCE = 256  # rows of the identity


def write_torchao(model: nn.Module, path: str | Path, runtime: Runtime) -> list[str]:
    """Write the state of a plain network and return the names of weights off the grid; raises if a written weight reads back differently."""
    kind = _tensor_type()
    stored = {name: one for name, one in read_stored(model, runtime).items() if runtime.formats(one.site)}
    if not stored:
        raise ConfigError(f"runtime={runtime.name!r} has codes for none of the layers: torch.save writes the same file")
    packed = {id(one.site.weight): _packed(one, kind) for one in stored.values() if one.form is not None}
    state = {name: packed.get(id(entry), entry) for name, entry in model.state_dict(keep_vars=True).items()}
    state = {name: entry.detach() if isinstance(entry, Tensor) else entry for name, entry in state.items()}
    with replacing_checked(Path(path), ".pt") as temporary:
        torch.save(state, temporary)
        found = torch.load(temporary, weights_only=True)
        for one in stored.values():
            if one.form is not None:
                _verify(found[one.site.name], one)
    return [name for name, one in stored.items() if one.form is None]


def _tensor_type() -> Any:
    try:
        from torchao.prototype.quantization.int4 import Int4OpaqueTensor
    except ImportError as error:
        raise ConfigError("runtime='torchao-int4' needs torchao 0.18 or later: pip install -U torchao") from error
    return Int4OpaqueTensor


def _packed(one: Stored, kind: Any) -> Tensor:
    assert one.form is not None
    codes = torch.from_numpy(one.codes.reshape(len(one.codes), -1).astype(np.int32))
    steps = torch.from_numpy(np.ascontiguousarray(one.steps.T))
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes - one.form.low, 1)
    with_offsets = torch.stack([steps, torch.zeros_like(steps)], dim=-1).contiguous()
    made: Tensor = kind(packed, with_offsets, [1, one.form.block], one.site.weight.shape)
    return made


def _verify(tensor: Tensor, one: Stored) -> None:
    """Raise unless a product with the identity gives the weight itself."""
    weight = one.site.weight.detach()
    if any(
        not torch.equal(nn.functional.linear(rows, tensor), weight[:, start : start + _AT_ONCE].T)
        for start, rows in zip(
            range(0, weight.shape[1], _AT_ONCE), torch.eye(weight.shape[1]).split(_AT_ONCE), strict=True
        )
    ):
        raise ConfigError(f"{one.site.name} reads back differently from the file: please report this")
