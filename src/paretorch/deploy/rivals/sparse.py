"""A pruned network as a careful user would compress it: a plain layout of its fp16 values, then zstd at its highest level.

Layouts that are tried, the smallest file counts: zeros in place; a bit mask and the values that stay; both of them with
the high and the low bytes of the values apart. Batch norms are folded to the two vectors that eval mode needs.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paretorch.deploy.codec.container import write_file
from paretorch.deploy.norms import prepared_state
from paretorch.deploy.rivals.range import require_range
from paretorch.errors import ArtefactError, MissingExtraError

_LEVEL = 22
_LAYOUTS = tuple({"masked": masked, "apart": apart} for masked in (True, False) for apart in (True, False))
_MOST = 1 << 31  # bytes that a file may unpack to


def write_sparse(model: nn.Module, path: Path) -> Path:
    """Write the smallest of the layouts and return the path."""
    packer = _zstandard().ZstdCompressor(level=_LEVEL)
    state = {key: tensor.cpu() for key, tensor in prepared_state(model, torch.float16, True).items()}
    require_range(state, torch.float16)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, min((packer.compress(_packed(state, **layout)) for layout in _LAYOUTS), key=len))
    return path


def read_sparse(path: Path, like: nn.Module) -> nn.Module:
    """A copy of `like` with the values of the file, computing in fp32."""
    zstandard = _zstandard()
    network = copy.deepcopy(like).cpu()
    try:
        data = zstandard.ZstdDecompressor().decompress(path.read_bytes(), max_output_size=_MOST)
        network.load_state_dict(_unpacked(data, network.state_dict()))
    except (zstandard.ZstdError, ValueError, KeyError, RuntimeError, OSError) as error:
        raise ArtefactError(f"{path} does not hold the state of this network: {error}") from error
    return network.eval()


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtraError("this file needs zstandard: pip install 'paretorch[bench]'") from error
    return zstandard


def _packed(state: Mapping[str, Tensor], masked: bool, apart: bool) -> bytes:
    """Four bytes: the length of the head; the head; masks; values in fp16; what is no float."""
    floats = {key: tensor for key, tensor in state.items() if tensor.is_floating_point()}
    others = {key: tensor for key, tensor in state.items() if key not in floats}
    values = np.concatenate([tensor.half().numpy().reshape(-1) for tensor in floats.values()])
    kept = values != 0
    mask = np.packbits(kept).tobytes() if masked else b""
    values = values[kept] if masked else values
    head = {
        "masked": masked,
        "apart": apart,
        "floats": {key: list(tensor.shape) for key, tensor in floats.items()},
        "others": {key: tensor.tolist() for key, tensor in others.items()},
    }
    text = json.dumps(head, separators=(",", ":")).encode()
    halves = values.view(np.uint8).reshape(-1, 2)
    return len(text).to_bytes(4, "little") + text + mask + (halves.T.tobytes() if apart else halves.tobytes())


def _unpacked(data: bytes, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = 4 + int.from_bytes(data[:4], "little")
    head = json.loads(data[4:start])
    counts = {key: math.prod(shape) for key, shape in head["floats"].items()}
    total = sum(counts.values())
    kept = np.ones(total, dtype=bool)
    if head["masked"]:
        length = (total + 7) // 8
        kept = np.unpackbits(np.frombuffer(data[start : start + length], np.uint8), count=total).astype(bool)
        start += length
    raw = np.frombuffer(data[start:], np.uint8)
    halves = raw.reshape(2, -1).T if head["apart"] else raw.reshape(-1, 2)
    values = np.zeros(total, np.float16)
    values[kept] = np.ascontiguousarray(halves).view(np.float16).reshape(-1)
    parts = torch.from_numpy(values).split(list(counts.values()))
    state = {
        key: part.view(shape).to(like[key].dtype)
        for (key, shape), part in zip(head["floats"].items(), parts, strict=True)
    }
    return state | {key: torch.tensor(value, dtype=like[key].dtype) for key, value in head["others"].items()}
