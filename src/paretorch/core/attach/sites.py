"""Where decisions can sit: every weight of a model, once, with all its owners; which of them users choose for a method, and the
warnings about layers that a method cannot act on.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Self

from torch import nn

from paretorch.core.groups import Group
from paretorch.core.relaxation import PREFIX
from paretorch.errors import ConfigError, LeftOutWarning, warn

Selector = str | type[nn.Module] | Callable[[str, nn.Module], bool] | Collection["Selector"]

WEIGHTED: tuple[type[nn.Module], ...] = (
    nn.Linear, nn.Bilinear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
    nn.Embedding, nn.EmbeddingBag, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention,
)  # fmt: skip
_ADAPTERS = "adapter_layer_names"
"""The attribute of PEFT's layers that lists which of their children are adapters."""
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def is_conv1d(module: nn.Module) -> bool:
    """The linear layer of GPT-2 and its kin in transformers, whose weight is inputs by outputs."""
    return any(kind.__name__ == "Conv1D" for kind in type(module).__mro__) and hasattr(module, "nf")


@dataclass(frozen=True, eq=False)
class Site:
    """One Parameter object: its first name, and every (module, attribute, module name) that holds it."""

    name: str
    weight: nn.Parameter
    owners: tuple[tuple[nn.Module, str, str], ...]
    is_adapter: bool = field(default=False, kw_only=True)
    """Whether it is a low-rank matrix or the like beside a layer's weight, as PEFT adds them: small, and trained in full precision."""

    @property
    def channel_axis(self) -> int:
        """The dimension of output channels: the second of a transposed convolution and of a Conv1D, else the first."""
        module = self.owners[0][0]
        return 1 if isinstance(module, _TRANSPOSED) or is_conv1d(module) else 0

    @property
    def padding(self) -> int | None:
        """The row that every owner, an embedding, takes for padding, where it is all zeros: without a gradient it stays so."""
        rows = {getattr(module, "padding_idx", None) for module, *_ in self.owners}
        row = rows.pop() if len(rows) == 1 else None
        return None if row is None or bool(self.weight.detach()[row].any()) else row

    @property
    def is_usual(self) -> bool:
        """The weight of a layer that has weights: no position table, no norm, no bias, no adapter."""
        return not self.is_adapter and any(
            (isinstance(module, WEIGHTED) or is_conv1d(module)) and "weight" in attribute
            for module, attribute, _ in self.owners
        )

    def matches(self, selector: Selector) -> bool:
        """A pattern matches the weight's or a module's name; a type or predicate matches an owner."""
        if isinstance(selector, str):
            names = {self.name, *(module_name for *_, module_name in self.owners)}
            names |= {f"{module_name}.{attribute}" for _, attribute, module_name in self.owners}
            return any(fnmatchcase(name, selector) for name in names)
        if isinstance(selector, type):
            return any(isinstance(module, selector) for module, *_ in self.owners)
        if callable(selector):
            return any(selector(module_name, module) for module, _, module_name in self.owners)
        if not isinstance(selector, Collection):
            raise ConfigError(
                f"{selector!r} selects no layer: use a name pattern, a module type, a predicate, or a list of these"
            )
        return any(self.matches(one) for one in selector)


@dataclass(frozen=True, eq=False)
class Template(Site):
    """A tensor of the root module under the site's own name; its owners are the layers that are mixed from it."""

    home: nn.Module


def find_sites(model: nn.Module, dims: int = 2) -> list[Site]:
    """All parameters of at least `dims` dimensions, each Parameter object once; those of whole numbers have no soft values."""
    found: dict[int, list[tuple[nn.Module, str, str]]] = {}
    adapters: set[str] = set()
    for module_name, module in model.named_modules():
        own = getattr(module, _ADAPTERS, ())
        adapters.update(_joined(module_name, name) for name in own if isinstance(own, tuple | list))
        if any(part.startswith(PREFIX) for part in module_name.split(".")):
            continue  # of a plan
        for attribute, parameter in module._parameters.items():
            if parameter is None or not (parameter.is_floating_point() or parameter.is_complex()):
                continue
            if parameter.dim() >= dims and parameter.numel() > 0:
                found.setdefault(id(parameter), []).append((module, attribute, module_name))
    return [_site(owners, adapters) for owners in found.values()]


def _joined(module_name: str, name: str) -> str:
    return f"{module_name}.{name}" if module_name else name


def _site(owners: list[tuple[nn.Module, str, str]], adapters: Collection[str]) -> Site:
    module, attribute, module_name = owners[0]
    parameter = module._parameters[attribute]
    assert parameter is not None
    name = _joined(module_name, attribute)
    parts = name.split(".")
    is_adapter = any(".".join(parts[: i + 1]) in adapters for i in range(len(parts)))
    return Site(name, parameter, tuple(owners), is_adapter=is_adapter)


def choose(sites: Sequence[Site], include: Selector | None, exclude: Selector) -> list[Site]:
    """The sites that `include` admits (None: the weights of the usual layers) and `exclude` does not take away."""
    admitted = [site for site in sites if (site.is_usual if include is None else site.matches(include))]
    return [site for site in admitted if not site.matches(exclude)]


def check_patterns(sites: Sequence[Site], **selectors: Selector | None) -> None:
    """Refuse name patterns that match none of the sites, by the option that they are given for."""
    for option, selector in selectors.items():
        for pattern in _patterns(selector):
            if any(site.matches(pattern) for site in sites):
                continue
            below = f"{pattern}.*"
            inside = any(site.matches(below) for site in sites)
            hint = f"{below!r} takes all below it" if inside else "correct it, or leave it out"
            raise ConfigError(
                f"{option}={pattern!r} matches nothing, {hint}: there are "
                f"{', '.join(site.name for site in sites[:4])}{' …' if len(sites) > 4 else ''}"
            )


def _patterns(selector: Selector | None) -> Iterator[str]:
    if isinstance(selector, str):
        yield selector
    elif isinstance(selector, Collection):
        for one in selector:
            yield from _patterns(one)


_MANY = 0.25  # zeros of a weight; fewer may be chance, in half precision or after weight decay


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The options by which a method chooses its layers, and by which layers may differ. `Method` says what each means."""

    group: Group = "weight"
    include: Selector | None = None
    exclude: Selector = ()
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    kind: ClassVar[str]
    unit: ClassVar[str]  # what a target counts: "kept" weights or "bits"
    per_layer: ClassVar[frozenset[str]] = frozenset({"group"})  # options that `overrides` may change
    on_activations: ClassVar[bool] = False  # its sites are outputs of activation modules
    takes_complex: ClassVar[bool] = False  # a mask does not mind; grids, magnitudes and templates are of real numbers

    def check(self) -> None:
        """Refuse options that cannot work, before anything is touched."""
        if not isinstance(self.overrides, Mapping) or not all(isinstance(o, Mapping) for o in self.overrides.values()):
            raise ConfigError(
                f'overrides={self.overrides!r}: give options by pattern, such as {{"fc*": {{"group": "layer"}}}}'
            )

    def for_site(self, site: Site) -> Self:
        """These options with the overrides that match the weight."""
        changes: dict[str, Any] = {}
        for pattern, options in self.overrides.items():
            if unknown := set(options) - self.per_layer:
                raise ConfigError(
                    f"overrides[{pattern!r}]: {', '.join(sorted(unknown))} is no option of {type(self).__name__} that "
                    f"may differ by layer; these may: {', '.join(sorted(self.per_layer))}"
                )
            if site.matches(pattern):
                changes.update(options)
        changed = replace(self, **changes)
        changed.check()
        return changed


def choose_sites(method: Selection, sites: Sequence[Site], named: Sequence[Site]) -> list[Site]:
    """The sites that the method acts on; its patterns may be about others of those that are named, such as biases."""
    chosen = choose(sites, method.include, method.exclude)
    if not chosen:
        kind = "activation module" if method.on_activations else "layer"
        none = "none that runs" if method.on_activations else "no weight of two dimensions"
        raise ConfigError(
            f"{type(method).__name__} finds no {kind} to act on: include={method.include!r}, exclude={method.exclude!r}; "
            f"the model has {', '.join(site.name for site in sites[:4]) or none}{' …' if len(sites) > 4 else ''}"
        )
    check_patterns([*sites, *named], include=method.include, exclude=method.exclude)
    for site in chosen:
        if any(getattr(module, "sparse", False) is True for module, *_ in site.owners):
            raise ConfigError(
                f"{site.name} has sparse gradients, which reach no decision: build its layer with sparse=False, or exclude it"
            )
        if method.unit == "bits" and any(getattr(module, "max_norm", None) is not None for module, *_ in site.owners):
            raise ConfigError(
                f"{site.name} is rescaled by max_norm whenever it is read, off any grid of {type(method).__name__}: "
                "build its layer without max_norm, or exclude it"
            )
        if site.weight.is_complex() and not method.takes_complex:
            raise ConfigError(
                f"{site.name} is complex, and {type(method).__name__} takes real weights alone: exclude it"
            )
    if method.include is None and not method.on_activations:
        _warn_left_out(method, sites)
    for pattern in method.overrides:
        if not any(site.matches(pattern) for site in chosen):
            raise ConfigError(
                f"overrides[{pattern!r}] of {type(method).__name__} matches no layer that it acts on: "
                f"{', '.join(site.name for site in chosen[:4])}{' …' if len(chosen) > 4 else ''}"
            )
    return chosen


def _warn_left_out(method: Selection, sites: Sequence[Site]) -> None:
    """Say so where most of the weights are in layers of kinds that nobody asked for and that are not known."""
    admitted = [site for site in sites if not site.is_adapter and not site.matches(method.exclude)]
    unknown = [site for site in admitted if not site.is_usual]
    left, every = (sum(site.weight.numel() for site in group) for group in (unknown, admitted))
    if 2 * left > every:
        kinds = ", ".join(dict.fromkeys(type(site.owners[0][0]).__name__ for site in unknown))
        warn(
            f"{type(method).__name__} leaves {left / every:.0%} of the weights alone, such as {unknown[0].name}, since their layers "
            f'({kinds}) are of unknown kinds: include="*" takes all, exclude= says that you know',
            LeftOutWarning,
        )


def warn_about_zeros(sites: Sequence[Site], acting: Mapping[str, Sequence[Selection]]) -> None:
    """Warn of a pruned weight that is quantized, where nothing that drops weights acts with it.

    A weight of nothing but zeros is none: it is a layer that begins so, to be trained.
    """
    for site in sites:
        methods = acting[site.name]
        bits = next((method for method in methods if method.unit == "bits"), None)
        if bits is None or getattr(bits, "zero_precision", False) or any(one.kind == "sparsity" for one in methods):
            continue
        zeros = float((site.weight.detach() == 0).float().mean())
        if _MANY <= zeros < 1.0:
            warn(
                f"{zeros:.0%} of {site.name} is zero and need not stay so, since {type(bits).__name__} drops nothing: "
                "give it and the method that prunes to one compress"
            )
            return
