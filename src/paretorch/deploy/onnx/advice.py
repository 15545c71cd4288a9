"""What to say of an ONNX file that is larger than it might be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paretorch.deploy.onnx.int8 import SIGNS
from paretorch.deploy.onnx.pack import CODES, LOW, STEPS
from paretorch.support.text import human

_SHOWN = 3  # names of layers in a message
_MANY_ZEROS = 0.25
_COMPRESSED = 0.1  # of the values: with fewer codes, nobody compressed the network
_EXCESS, _EXCESS_BYTES = 1.02, 1000  # over int8: less is not worth a word
_REMEDY = 'compress(runtime="onnxruntime-int8") trains them on codes of 8 bits and less'


@dataclass(frozen=True)
class _Weight:
    """A weight in the file: how many values, their bytes, and whether they are plain numbers or codes of more than 8 bits."""

    name: str
    count: int
    size: int
    outputs: int
    is_plain: bool
    is_wide: bool
    zeros: float


def advice(path: str, form: str) -> str | None:
    """Return a sentence about a file with weights that could be smaller, and what would help; None if there is nothing to say.

    Files of networks that nobody compressed are left alone, unless integers were asked for.

    Args:
        form: "packed" or "qdq".
    """
    weights, total = _weights(path)
    plain, wide = [one for one in weights if one.is_plain], [one for one in weights if one.is_wide]
    if form == "qdq" and plain:
        return (
            f'weights="qdq" left {len(plain)} of {len(weights)} weights as plain numbers, which lie on no grid of 8 bits or less '
            f"({_names(plain)}): {_REMEDY}"
        )
    int8 = total + sum(one.count + 4 * one.outputs * one.is_plain - one.size for one in weights)
    count = max(sum(one.count for one in weights), 1)
    zeros = sum(one.zeros * one.count for one in weights) / count
    coded = 1 - sum(one.count for one in plain) / count
    if form != "packed" or total < _EXCESS * int8 + _EXCESS_BYTES or (coded < _COMPRESSED and zeros < _MANY_ZEROS):
        return None
    reasons = []
    if plain:
        reasons.append(f"{len(plain)} of {len(weights)} weights lie on no grid ({_names(plain)})")
    if wide:
        reasons.append(f"the widest channel of {len(wide)} weights has more than 8 bits ({_names(wide)})")
    if zeros >= _MANY_ZEROS:
        reasons.append(f"ONNX stores zeros, {zeros:.0%} here, like other values")
    return f"The file takes {human(total)}, and in int8 about {human(int8)}: {'; '.join(reasons)}. {_REMEDY}"


def _names(weights: Sequence[_Weight]) -> str:
    largest = sorted(weights, key=lambda one: -one.size)[:_SHOWN]
    return ", ".join(one.name for one in largest) + (" …" if len(weights) > _SHOWN else "")


def _weights(path: str) -> tuple[list[_Weight], int]:
    """Return the weights of a file, and its bytes."""
    import onnx
    from onnx import TensorProto, numpy_helper

    model = onnx.load(path)
    tensors = {t.name: t for t in model.graph.initializer if len(t.dims) > 1}
    found = []
    for name, tensor in tensors.items():
        if name.endswith((STEPS, SIGNS, LOW)):
            continue
        base = name.removesuffix(CODES)
        low = tensors.get(base + LOW)
        is_plain = tensor.data_type in (TensorProto.FLOAT, TensorProto.FLOAT16)
        zeros = float(np.mean(numpy_helper.to_array(tensor) == 0)) if is_plain else 0.0
        size = len(_raw(tensor)) + (0 if low is None else len(_raw(low)))
        is_wide = low is not None and 8 * size > 8 * int(np.prod(tensor.dims))
        found.append(_Weight(base, int(np.prod(tensor.dims)), size, tensor.dims[0], is_plain, is_wide, zeros))
    return found, model.ByteSize()


def _raw(tensor: Any) -> bytes:
    from onnx import numpy_helper

    return bytes(tensor.raw_data) or numpy_helper.to_array(tensor).tobytes()
