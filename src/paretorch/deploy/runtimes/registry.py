"""Which formats each inference runtime has for which layers.

A `Runtime` is what `runtime=` names in `compress`, `shrink` and `export`. It says, for a weight and a number of bits, in which
format the weight is stored; None if the runtime has no codes for such a layer, which then keeps fp16, or fp32 if its files have no fp16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from torch import nn

from paretorch.core.attach.sites import Site, is_conv1d
from paretorch.core.formats import BLOCKS, FORMATS, WeightFormat
from paretorch.errors import ConfigError, MissingExtraError

Ladder = Mapping[int, tuple[str, ...]]
"""Names of formats by bits, those to be preferred first."""
HALF = FORMATS["fp16"]
_SUFFIXES = {"onnx": ".onnx", "gguf": ".gguf", "torchao": ".pt", "executorch": ".pte"}
_TRACED = ("onnx", "executorch")


@dataclass(frozen=True)
class Runtime:
    """An inference runtime and the formats that it computes with.

    Args:
        bits: What each weight gets unless more or fewer are asked for.
        kind: The file: "onnx", "gguf", "executorch" or "torchao".
        matrices: Formats of linear layers and embeddings.
        others: Formats of convolutions and all other layers.
        least_embedding: Bits of an embedding, at least.
        step_bytes: Of a step in the file, if not those of the format.
        shares_ties: Whether the file holds a weight once that an embedding and a linear layer share.
        layers: Whether the runtime has codes for a weight at all; default: for every one that its formats can hold.
        has_halves: Whether a weight without codes is fp16 in the file; if not, fp32.
        package, extra: What `export` needs, and the extra of this library that installs it.
    """

    name: str
    bits: int
    kind: str
    matrices: Ladder
    others: Ladder
    package: str
    extra: str = "export"
    least_embedding: int = 0
    step_bytes: int | None = None
    shares_ties: bool = True
    layers: Callable[[Site], bool] | None = None
    has_halves: bool = True

    @property
    def suffix(self) -> str:
        """The end of the names of its files."""
        return _SUFFIXES[self.kind]

    @property
    def is_traced(self) -> bool:
        """Whether its files have the graph, so that an example is needed."""
        return self.kind in _TRACED

    @property
    def rest(self) -> WeightFormat | None:
        """The format of weights without codes; None: fp32."""
        return HALF if self.has_halves else None

    @property
    def widths(self) -> tuple[int, ...]:
        """All bits that some layer can have, ascending."""
        return tuple(sorted({*self.matrices, *self.others}))

    def format_of(self, site: Site, bits: int | None = None) -> WeightFormat | None:
        """Return the format of a weight at so many bits, or at the next more that it can have; None if there is none."""
        wanted = self.bits if bits is None else bits
        if any(isinstance(module, nn.Embedding) for module, *_ in site.owners):
            wanted = max(wanted, self.least_embedding)
        ladder = self._ladder(site)
        for width in sorted(ladder):
            for name in ladder[width] if width >= wanted else ():
                if FORMATS[name].holds(site):
                    return FORMATS[name]
        return None

    def formats(self, site: Site) -> tuple[WeightFormat, ...]:
        """Return all formats that can hold a weight, those of the fewest bits first."""
        ladder = self._ladder(site)
        every = (FORMATS[name] for width in sorted(ladder) for name in ladder[width])
        return tuple(one for one in every if one.holds(site))

    def _ladder(self, site: Site) -> Ladder:
        if self.layers is not None and not self.layers(site):
            return {}
        return self.matrices if is_matrix(site) else self.others

    def require_package(self) -> None:
        """Raise if what `export` needs is not installed."""
        if find_spec(self.package) is None:
            raise MissingExtraError(
                f"runtime={self.name!r} needs {self.package}: pip install 'paretorch[{self.extra}]'"
            )


def is_matrix(site: Site) -> bool:
    """Whether a weight is the matrix of a linear layer or an embedding."""
    return site.weight.dim() == 2 and all(
        attribute == "weight" and (isinstance(module, nn.Linear | nn.Embedding) or is_conv1d(module))
        for module, attribute, _ in site.owners
    )


def _runs_in_torchao(site: Site) -> bool:
    """Its kernels multiply in linear layers of 16, 32, 48 … outputs; a head that is tied to an embedding is none."""
    return all(isinstance(module, nn.Linear) for module, *_ in site.owners) and site.weight.shape[0] % 16 == 0


def _runs_in_xnnpack(site: Site) -> bool:
    """XNNPACK multiplies integers in linear layers and in convolutions that mix channels; embeddings have an operation of their own."""
    return all(
        isinstance(module, nn.Linear)
        or is_conv1d(module)
        or type(module).forward is nn.Embedding.forward
        or (type(module).forward is nn.Conv2d.forward and module.groups == 1)
        for module, *_ in site.owners
    )


def _blocks(bits: int) -> tuple[str, ...]:
    return tuple(f"int{bits}x{block}" for block in BLOCKS)


_ONNX_MATRICES = {2: _blocks(2), 4: (*_blocks(4), "int4"), 8: (*_blocks(8), "int8")}
_ONNX_OTHERS = {4: ("int4",), 8: ("int8",)}
_SHORT_BLOCKS = tuple(f"int4x{block}bf16" for block in (32, 64, 128))

RUNTIMES = {
    one.name: one
    for one in (
        Runtime("onnxruntime-int8", 8, "onnx", {8: ("int8",)}, {8: ("int8",)}, "onnxruntime"),
        Runtime("onnxruntime-int4", 4, "onnx", _ONNX_MATRICES, _ONNX_OTHERS, "onnxruntime", least_embedding=4),
        Runtime(
            "openvino",
            4,
            "onnx",
            {4: _ONNX_MATRICES[4], 8: _ONNX_MATRICES[8]},
            _ONNX_OTHERS,
            "openvino",
            "openvino",
        ),
        Runtime("gguf:Q8_0", 8, "gguf", {8: ("Q8_0",)}, {}, "gguf", "gguf"),
        Runtime("gguf:Q4_0", 4, "gguf", {4: ("Q4_0",), 8: ("Q8_0",)}, {}, "gguf", "gguf"),
        # As llama.cpp's own ternary files: embeddings, and rows that are no multiple of 256, have more bits.
        Runtime(
            "gguf:TQ2_0",
            2,
            "gguf",
            {2: ("TQ2_0",), 4: ("Q4_0",), 8: ("Q8_0",)},
            {},
            "gguf",
            "gguf",
            least_embedding=4,
        ),
        Runtime(
            "executorch",
            4,
            "executorch",
            {4: _SHORT_BLOCKS, 8: ("int8",)},
            {8: ("int8",)},
            "executorch",
            "executorch",
            shares_ties=False,
            layers=_runs_in_xnnpack,
            has_halves=False,
        ),
        Runtime(
            "torchao-int4",
            4,
            "torchao",
            {4: _SHORT_BLOCKS[::-1]},
            {},
            "torchao",
            "torchao",
            step_bytes=8,  # with its offset, both in fp32
            layers=_runs_in_torchao,
            has_halves=False,
        ),
    )
}
"""All runtimes by name."""


def find_runtime(name: str) -> Runtime:
    """Return a runtime by its name; raises for an unknown one."""
    if name not in RUNTIMES:
        raise ConfigError(f"runtime={name!r} is not known: use one of {', '.join(RUNTIMES)}")
    return RUNTIMES[name]
