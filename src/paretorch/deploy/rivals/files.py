"""Files that other tools would write of a network, and their readers.

plain         a safetensors file of the state, in fp32 or in half precision
weight_int8   a safetensors file: weights as int8 with one step per output channel, q = round(w / s), s = max |w| / 127; the
              rest in fp16
sparse        fp16 values in the smallest of four layouts, then zstd at its highest level, for pruned networks. Layouts: all
              values, or a bit mask and the values that are not zero; each also with high and low bytes separated. Batch norms
              are folded to the two vectors that eval mode needs.
int8          an ONNX file for onnxruntime: weights per channel, activations by the ranges that some batches give
"""

from __future__ import annotations

import contextlib
import copy
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from paretorch.deploy.norms import prepared_state
from paretorch.deploy.onnx import export_onnx
from paretorch.errors import ArtefactError, ConfigError, MissingExtraError
from paretorch.support.files import write_file


def require_range(state: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Raise for finite values that this dtype cannot hold, which would become infinite."""
    for name, tensor in state.items():
        if not tensor.is_floating_point():
            continue
        lost = tensor.isfinite() & ~tensor.to(dtype).isfinite()
        if bool(lost.any()):
            value = float(tensor[lost][0])
            raise ConfigError(
                f"{name} has a value of {value:.3g}, which {dtype} cannot hold: write this network in torch.float32"
            )


def write_plain(model: nn.Module, path: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Write the state in `dtype`, tied tensors once, and return the path."""
    from safetensors.torch import save_model

    require_range(model.state_dict(), dtype)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_model(copy.deepcopy(model).cpu().to(dtype), str(path))
    return path


def read_plain(path: Path, like: nn.Module) -> nn.Module:
    """Return a copy of `like` with the values of the file, in fp32."""
    from safetensors import SafetensorError
    from safetensors.torch import load_model

    network = copy.deepcopy(like).cpu()
    with _reading(path, SafetensorError):
        load_model(network, str(path))
    return network.eval()


@contextlib.contextmanager
def _reading(path: Path, kind: type[Exception]) -> Iterator[None]:
    """Turn errors of this kind, and those of other state dicts, into an `ArtefactError`."""
    try:
        yield
    except (kind, ValueError, KeyError, RuntimeError, OSError) as error:
        raise ArtefactError(f"{path} does not hold the state of this network: {error}") from error


_STEP_SUFFIX = "_step"


def write_weight_int8(model: nn.Module, path: Path) -> Path:
    """Write weights as int8 with one step per output channel, everything else in fp16, and return the path."""
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
        stored[name + _STEP_SUFFIX] = step.flatten().float()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in stored.items()}, str(path))
    return path


def read_weight_int8(path: Path, like: nn.Module) -> nn.Module:
    """Return a copy of `like` with the values of the file, in fp32."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    network = copy.deepcopy(like).cpu()
    with _reading(path, SafetensorError):
        stored = load_file(str(path))
        state = {}
        for name, value in network.state_dict().items():
            found = stored[name].to(value.dtype)
            if name + _STEP_SUFFIX in stored:
                found = found * stored[name + _STEP_SUFFIX].to(value.dtype).view(-1, *[1] * (found.dim() - 1))
            state[name] = found
        network.load_state_dict(state)
    return network.eval()


_ZSTD_LEVEL = 22
_LAYOUTS = tuple({"masked": masked, "apart": apart} for masked in (True, False) for apart in (True, False))
_MAX_BYTES = 1 << 31  # bytes that a file may unpack to


def write_sparse(model: nn.Module, path: Path) -> Path:
    """Write the smallest of the layouts, compressed, and return the path."""
    packer = _zstandard().ZstdCompressor(level=_ZSTD_LEVEL)
    state = {key: tensor.cpu() for key, tensor in prepared_state(model, torch.float16, True).items()}
    require_range(state, torch.float16)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, min((packer.compress(encode_sparse(state, **layout)) for layout in _LAYOUTS), key=len))
    return path


def read_sparse(path: Path, like: nn.Module) -> nn.Module:
    """Return a copy of `like` with the values of the file, in fp32."""
    zstandard = _zstandard()
    network = copy.deepcopy(like).cpu()
    with _reading(path, zstandard.ZstdError):
        data = zstandard.ZstdDecompressor().decompress(path.read_bytes(), max_output_size=_MAX_BYTES)
        network.load_state_dict(decode_sparse(data, network.state_dict()))
    return network.eval()


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise MissingExtraError("This file needs zstandard: pip install 'paretorch[bench]'") from error
    return zstandard


def encode_sparse(state: Mapping[str, Tensor], masked: bool, apart: bool) -> bytes:
    """Return length of the head (four bytes), head (with all tensors that are not floats), mask, values in fp16."""
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


def decode_sparse(data: bytes, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
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


def write_int8(model: nn.Module, path: Path, batches: list[Tensor]) -> Path:
    """Write the int8 file and return its path; `batches` of inputs calibrate it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return export_onnx(model, batches[0][:2], path, calibrate=iter(batches))


class OnnxNetwork(nn.Module):
    """An ONNX file as a module, run by onnxruntime on the CPU."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        import onnxruntime

        super().__init__()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._names = [one.name for one in self._session.get_inputs()]

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor | dict[str, Tensor]:
        """Return the output, or the outputs by name if there are several."""
        given = {**dict(zip(self._names, inputs, strict=False)), **named}
        arrays = {name: _array(given[name]) for name in self._names if name in given}
        found = [
            torch.from_numpy(output).to(next(iter(given.values())).device) for output in self._session.run(None, arrays)
        ]
        if len(found) == 1:
            return found[0]
        return dict(zip([one.name for one in self._session.get_outputs()], found, strict=True))


def _array(tensor: Tensor) -> NDArray[Any]:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()
