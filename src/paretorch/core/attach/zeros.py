"""Zeros that a network has before it is compressed: those of an earlier pruning, which quantized weights need not keep."""

from collections.abc import Mapping, Sequence

from paretorch.core.attach.choose import Selection
from paretorch.core.attach.sites import Site
from paretorch.support.warn import warn

_MANY = 0.25  # of a weight; fewer may be chance, in half precision or after weight decay


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
