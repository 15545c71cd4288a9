"""Where decisions can sit: every weight of a model, once, with all its owners, and how users choose among them."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from paretorch.core.relaxation import PREFIX
from paretorch.errors import ConfigError

Selector = str | type[nn.Module] | Callable[[str, nn.Module], bool] | Collection["Selector"]

WEIGHTED: tuple[type[nn.Module], ...] = (
    nn.Linear, nn.Bilinear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
    nn.Embedding, nn.EmbeddingBag, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention,
)  # fmt: skip
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
        """The weight of a layer that has weights: no position table, no norm, no bias."""
        return any(
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
    for module_name, module in model.named_modules():
        if any(part.startswith(PREFIX) for part in module_name.split(".")):
            continue  # of a plan
        for attribute, parameter in module._parameters.items():
            if parameter is None or not (parameter.is_floating_point() or parameter.is_complex()):
                continue
            if parameter.dim() >= dims and parameter.numel() > 0:
                found.setdefault(id(parameter), []).append((module, attribute, module_name))
    return [_site(owners) for owners in found.values()]


def _site(owners: list[tuple[nn.Module, str, str]]) -> Site:
    module, attribute, module_name = owners[0]
    parameter = module._parameters[attribute]
    assert parameter is not None
    return Site(f"{module_name}.{attribute}" if module_name else attribute, parameter, tuple(owners))


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
