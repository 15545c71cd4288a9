"""Where a file is larger than the bits of its weights say, and why.

Bits per weight leave out what says which bits a weight has, the steps of groups, and values that are on no grid. Masks are no
surprise: the report has them beside the sparsity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from paretorch.deploy.codec.sizes import TensorSize
from paretorch.deploy.measure.text import human, printable

_WORTH_A_WORD = 0.2  # of the bytes that the bits say
_LEAST_BYTES = 1000
_FEW_BITS = 8
_NAMED = 3  # reasons


class _Layer(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def size(self) -> TensorSize: ...


def excess_in_words(layers: Sequence[_Layer]) -> str | None:
    """Return by how much the weights take more bytes than their bits say, and what takes them; None if they do not.

    Weights on no grid count as larger if most of the others have few bits.
    """
    coded = [layer for layer in layers if layer.size.precisions]
    few = sum(layer.size.numel for layer in coded if layer.size.bits <= _FEW_BITS)
    count = sum(layer.size.numel for layer in layers)
    floats = [layer for layer in layers if not layer.size.precisions] if 2 * few >= count else []
    mean = sum(layer.size.bits * layer.size.numel for layer in coded) / max(sum(layer.size.numel for layer in coded), 1)
    said = sum(layer.size.bits * layer.size.numel for layer in coded) / 8
    said += sum(layer.size.numel for layer in floats) * mean / 8
    taken = sum(layer.size.total - layer.size.masks for layer in (*coded, *floats))
    if taken - said < max(_LEAST_BYTES, _WORTH_A_WORD * said):
        return None
    reasons = sorted((reason for layer in (*coded, *floats) for reason in _reasons(layer, mean)), reverse=True)
    named = [text for size, text in reasons[:_NAMED] if size > 0.05 * (taken - said)]
    return (
        f"The weights take {human(taken)} without masks, {taken / max(said, 1.0):.2f} times the {human(said)} that their "
        f"bits say: {'; '.join(named) if named else 'tables of frequencies'}"
    )


def _reasons(layer: _Layer, mean: float) -> list[tuple[float, str]]:
    """Return bytes that the bits do not say, and in words what they are for."""
    name, size = printable(layer.name), layer.size
    if not size.precisions:
        more = size.total - size.masks - size.numel * mean / 8
        return [(more, f"{name} lies on no grid and takes {human(size.total)}: quantize or prune it")]
    return [
        (size.maps, f"the map of precisions of {name} takes {human(size.maps)}: let more weights share a decision"),
        (size.steps, f"the steps of {name} take {human(size.steps)}: larger groups, or steps in fp16, take less"),
        (size.off, f"values of {name} off their grid take {human(size.off)}"),
        (size.rest, f"the tables of {name} take {human(size.rest)}"),
    ]
