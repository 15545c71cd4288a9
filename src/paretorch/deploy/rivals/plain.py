"""A network as most people keep it: a safetensors file of its state, in fp32 or in half precision."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import nn

from paretorch.deploy.rivals.range import require_range
from paretorch.errors import ArtefactError


def write_plain(model: nn.Module, path: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Write the state in `dtype`, tied tensors once, and return the path."""
    from safetensors.torch import save_model

    require_range(model.state_dict(), dtype)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_model(copy.deepcopy(model).cpu().to(dtype), str(path))
    return path


def read_plain(path: Path, like: nn.Module) -> nn.Module:
    """A copy of `like` with the values of the file, computing in fp32."""
    from safetensors import SafetensorError
    from safetensors.torch import load_model

    network = copy.deepcopy(like).cpu()
    try:
        load_model(network, str(path))
    except (SafetensorError, RuntimeError, OSError) as error:
        raise ArtefactError(f"{path} does not hold the state of this network: {error}") from error
    return network.eval()
