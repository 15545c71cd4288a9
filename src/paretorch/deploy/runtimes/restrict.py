"""`runtime=` of `compress`: methods that give bits are restricted to the formats of one runtime, layer by layer.

Bits between those that the runtime has are met by giving some layers more than others: first those whose values lose the most by
few bits, relative to their size, for each bit that is spent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import nn

from paretorch.core.attach.sites import Site, choose_sites, find_sites
from paretorch.core.formats import FORMATS, WeightFormat
from paretorch.core.groups import grouping
from paretorch.core.method import Couples, Method
from paretorch.deploy.runtimes.registry import Runtime, find_runtime
from paretorch.errors import ConfigError, LeftOutWarning, warn

_SHOWN = 3  # names of layers in a message


def restrict(model: nn.Module, methods: Sequence[Method], runtime: str, cuts: bool = False) -> tuple[Method, ...]:
    """Return the methods with formats of the runtime for each weight.

    Args:
        cuts: Whether methods with `group="channel"` remove channels.
    """
    target = find_runtime(runtime)
    target.require_package()
    own = [method for method in methods if _takes_formats(method)]
    if len(own) != 1:
        raise ConfigError(f"runtime={runtime!r} needs one method that has formats: give SMOL() or LSQ(bits=...)")
    found = _restricted(model, own[0], target)
    if cuts and any(isinstance(method, Couples) and method.group == "channel" for method in methods):
        blocked = next((name for name, form in _formats(found).items() if FORMATS[form].block), None)
        if blocked is not None:
            raise ConfigError(
                f"runtime={runtime!r} stores {blocked} in blocks of inputs, which removed channels would cut: remove channels first, "
                "and compress what is left"
            )
    return tuple(found if method is own[0] else method for method in methods)


def _takes_formats(method: object) -> bool:
    return isinstance(method, Method) and any(one.name == "format" for one in fields(method))


def _formats(method: Any) -> dict[str, str]:
    return {name: options["format"] for name, options in method.overrides.items()}


def _restricted(model: nn.Module, method: Any, runtime: Runtime) -> Method:
    named = find_sites(model, dims=0) if isinstance(model, nn.Module) else []
    sites = choose_sites(method, [site for site in named if site.weight.dim() > 1], named)
    given = {site.name: _given(method, site, runtime) for site in sites}
    wanted = _wanted_bits(method, runtime)
    chosen = _choose(sites, runtime, wanted, given)
    without = [site for site in sites if chosen.get(site.name) is runtime.rest and given[site.name] is None]
    if without:
        _warn_of_layers(without, sites, runtime)
    if not chosen:
        raise ConfigError(f"runtime={runtime.name!r} has codes for none of the layers: leave it out")
    overrides = {name: {"format": form.name} for name, form in chosen.items()}
    changes: dict[str, Any] = {"include": list(chosen), "exclude": (), "overrides": overrides}
    if hasattr(method, "target_bits"):
        changes["target_bits"] = None
    return replace(method, format=next(iter(chosen.values())).name, **changes)  # type: ignore[no-any-return]


def _given(method: Any, site: Site, runtime: Runtime) -> WeightFormat | None:
    """The format that the user chose for a layer."""
    name = method.format
    for pattern, options in method.overrides.items():
        if site.matches(pattern):
            name = options.get("format", name)
    if name is None:
        return None
    allowed = [one.name for one in (*runtime.formats(site), runtime.rest) if one is not None]
    if name not in allowed:
        raise ConfigError(
            f"format={name!r} of {site.name}: runtime={runtime.name!r} stores it as {', '.join(allowed) or 'fp32 alone'}; use one of these"
        )
    return FORMATS[name]


def _wanted_bits(method: Any, runtime: Runtime) -> float:
    bits = getattr(method, "target_bits", None) or getattr(method, "bits", None) or runtime.bits
    least, most = runtime.widths[0], runtime.widths[-1]
    if not least <= bits <= most:
        option = "target_bits" if hasattr(method, "target_bits") else "bits"
        between = f"{least}" if least == most else f"{least} to {most}"
        raise ConfigError(f"{option}={bits!r}: runtime={runtime.name!r} stores codes of {between} bits; ask for that")
    return float(bits)


def _choose(
    sites: Sequence[Site], runtime: Runtime, bits: float, given: Mapping[str, WeightFormat | None]
) -> dict[str, WeightFormat]:
    """Return the format of each weight that has one: at most so many bits on average, as far as the runtime has them."""
    low = max((width for width in runtime.widths if width <= bits), default=runtime.widths[0])
    wanted = {site.name: given[site.name] or runtime.format_of(site, low) or runtime.rest for site in sites}
    chosen = {name: form for name, form in wanted.items() if form is not None}
    if bits == low:
        return chosen
    free = [
        site for site in sites if given[site.name] is None and site.name in chosen and chosen[site.name].bits == low
    ]
    left = bits * sum(site.weight.numel() for site in free) - sum(low * site.weight.numel() for site in free)
    gains = []
    for site in free:
        wider = runtime.format_of(site, low + 1)
        if wider is not None:
            spent = (wider.bits - low) * site.weight.numel()
            saved = relative_error(site, chosen[site.name]) - relative_error(site, wider)
            gains.append((saved / spent, spent, site.name, wider))
    for _, spent, name, wider in sorted(gains, key=lambda gain: -gain[0]):
        if spent <= left:
            chosen[name], left = wider, left - spent
    return chosen


@torch.no_grad()
def relative_error(site: Site, form: WeightFormat) -> float:
    """Return the squared error of a weight in a format over the sum of its squares."""
    weight = site.weight.detach().float()
    own = grouping(form.group(site), site.name, weight, site.channel_axis)
    error = form.values(weight, own.expand(form.fit(weight, own))) - weight
    return float(error.square().sum() / weight.square().sum().clamp_min(1e-30))


def _warn_of_layers(without: Sequence[Site], sites: Sequence[Site], runtime: Runtime) -> None:
    names = ", ".join(site.name for site in without[:_SHOWN]) + (" …" if len(without) > _SHOWN else "")
    count, every = (sum(site.weight.numel() for site in group) for group in (without, sites))
    warn(
        f"runtime={runtime.name!r} has no codes for {len(without)} of {len(sites)} layers, which stay in {'fp16' if runtime.rest else 'fp32'} "
        f"({count / every:.1%} of the weights): {names}",
        LeftOutWarning,
    )
