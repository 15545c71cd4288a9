"""Weights as int8 with a step for each output channel, everything else in fp16: a safetensors file without a graph.

q = round(w / s),   s = max |w| of the channel / 127
"""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import Tensor, nn

from paretorch.deploy.rivals.range import require_range
from paretorch.errors import ArtefactError

_STEP = "_step"


def write_weight_int8(model: nn.Module, path: Path) -> Path:
    """Write the file and return its path."""
    from safetensors.torch import save_file

    stored: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        value = tensor.detach().cpu()
        if not value.is_floating_point() or value.dim() < 2:
            require_range({name: value}, torch.float16)
            stored[name] = (value.half() if value.is_floating_point() else value).clone()
            continue
        step = value.abs().amax(list(range(1, value.dim())), keepdim=True).clamp_min(1e-12) / 127
        stored[name] = (value / step).round().to(torch.int8)
        stored[name + _STEP] = step.flatten().float()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in stored.items()}, str(path))
    return path


def read_weight_int8(path: Path, like: nn.Module) -> nn.Module:
    """A copy of `like` with the values of the file, computing in fp32."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    network = copy.deepcopy(like).cpu()
    try:
        stored = load_file(str(path))
        state = {}
        for name, value in network.state_dict().items():
            found = stored[name].to(value.dtype)
            if name + _STEP in stored:
                found = found * stored[name + _STEP].to(value.dtype).view(-1, *[1] * (found.dim() - 1))
            state[name] = found
        network.load_state_dict(state)
    except (SafetensorError, RuntimeError, KeyError, OSError) as error:
        raise ArtefactError(f"{path} does not hold the state of this network: {error}") from error
    return network.eval()
