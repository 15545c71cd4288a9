"""Which weights, or outputs, a method acts on, and what is said where it cannot act on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from paretorch.core.attach.sites import Selector, Site, check_patterns, choose
from paretorch.core.groups import Group
from paretorch.errors import ConfigError, LeftOutWarning, warn

_MANY = 0.25  # zeros of a weight; fewer may be chance, in half precision or after weight decay


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The options by which a method chooses its layers, and by which layers may differ. `Method` says what each means."""

    group: Group = "weight"
    include: Selector | None = None
    exclude: Selector = ()
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    room: ClassVar[str]
    unit: ClassVar[str]  # what a target counts: "kept" weights or "bits"
    per_layer: ClassVar[frozenset[str]] = frozenset({"group"})  # options that `overrides` may change
    on_activations: ClassVar[bool] = False  # its sites are spots: outputs of activation modules
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
        _tell_left_out(method, sites)
    for pattern in method.overrides:
        if not any(site.matches(pattern) for site in chosen):
            raise ConfigError(
                f"overrides[{pattern!r}] of {type(method).__name__} matches no layer that it acts on: "
                f"{', '.join(site.name for site in chosen[:4])}{' …' if len(chosen) > 4 else ''}"
            )
    return chosen


def _tell_left_out(method: Selection, sites: Sequence[Site]) -> None:
    """Say so where most of the weights are in layers of kinds that nobody asked for and that are not known."""
    admitted = [site for site in sites if not site.matches(method.exclude)]
    unknown = [site for site in admitted if not site.is_usual]
    left, every = (sum(site.weight.numel() for site in group) for group in (unknown, admitted))
    if 2 * left > every:
        kinds = ", ".join(dict.fromkeys(type(site.owners[0][0]).__name__ for site in unknown))
        warn(
            f"{type(method).__name__} leaves {left / every:.0%} of the weights alone, such as {unknown[0].name}, since their layers "
            f'({kinds}) are of unknown kinds: include="*" takes all, exclude= says that you know',
            LeftOutWarning,
        )


def tell_of_zeros(sites: Sequence[Site], acting: Mapping[str, Sequence[Selection]]) -> None:
    """Warn of a pruned weight that is quantized, where nothing that drops weights acts with it.

    A weight of nothing but zeros is none: it is a layer that begins so, to be trained.
    """
    for site in sites:
        methods = acting[site.name]
        bits = next((method for method in methods if method.unit == "bits"), None)
        if bits is None or getattr(bits, "zero_precision", False) or any(one.room == "sparsity" for one in methods):
            continue
        zeros = float((site.weight.detach() == 0).float().mean())
        if _MANY <= zeros < 1.0:
            warn(
                f"{zeros:.0%} of {site.name} is zero and need not stay so, since {type(bits).__name__} drops nothing: "
                "give it and the method that prunes to one compress"
            )
            return
