"""Which of the coupled channels stay: the share that is asked for, by scores, in multiples."""

from functools import cache

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn

from paretorch.core.channels.couple import couple
from paretorch.core.channels.coupling import Coupling, threshold_for
from paretorch.edits.keep_channels import channel_edits
from tests.core.coupled_nets import NETS

X = torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(1))


@cache
def coupling_of(name: str) -> Coupling:
    """Of a network of NETS, which is traced once for all examples."""
    model = NETS[name][0]()
    return couple(model, X, {f"{n}.weight" for n, _ in model.named_modules()}, "this")


@settings(max_examples=25, deadline=None)
@given(share=st.floats(0.0, 1.0), seed=st.integers(0, 99), unit=st.sampled_from(["weights", "macs"]))
def test_rounding_comes_nearest_to_the_share(share: float, seed: int, unit: str) -> None:
    coupling = coupling_of("residual")
    score = torch.rand(coupling.count, generator=torch.Generator().manual_seed(seed))
    keep = coupling.keep_best(score, share, unit, 1)
    assert all(bool(keep[one].any()) for one in coupling.sets)
    off = abs(float(coupling.share(keep, unit)) - share)
    best = {int(one[score[one].argmax()]) for one in coupling.sets}
    for flip in range(coupling.count):  # no single channel more, or one less, would be nearer in the order of scores
        other = keep.clone()
        other[flip] = ~keep[flip]
        in_order = bool((score[other].min() >= score[~other].max()) if (~other).any() and other.any() else True)
        if in_order and not (flip in best and bool(keep[flip])):
            assert abs(float(coupling.share(other, unit)) - share) >= off - 1e-6


@settings(max_examples=25, deadline=None)
@given(
    share=st.floats(0.0, 1.0), seed=st.integers(0, 99), multiple=st.integers(1, 20), name=st.sampled_from(sorted(NETS))
)
def test_what_stays_is_a_multiple(share: float, seed: int, multiple: int, name: str) -> None:
    model = NETS[name][0]()
    coupling = coupling_of(name)
    score = torch.rand(coupling.count, generator=torch.Generator().manual_seed(seed))
    keep = coupling.keep_best(score, share, "macs", multiple)
    stays = coupling.pad(keep, score, multiple)
    assert torch.equal(keep, keep & stays)
    before = {n: m.out_channels for n, m in model.named_modules() if isinstance(m, nn.Conv2d)}
    for edit in channel_edits(coupling.kept(stays)):
        edit.apply(model)
    for one in coupling.sets:
        assert keep[one].any()
        dropped, stayed = score[one[~stays[one]]], score[one[keep[one]]]
        assert not len(dropped) or dropped.max() <= stayed.min()
    if name in ("residual", "dense", "excited"):
        for layer, count in before.items():
            left = model.get_submodule(layer).out_channels
            assert left == count or left % multiple == 0
        assert float(coupling.share(stays, "macs")) == pytest.approx(float(coupling.share(keep, "macs", multiple)))


def _order(score: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    return (score >= threshold).float()


@settings(max_examples=40, deadline=None)
@given(
    share=st.floats(0.0, 1.0),
    seed=st.integers(0, 99),
    multiple=st.sampled_from([1, 4]),
    now=st.floats(-3.0, 3.0),
    coarse=st.booleans(),
)
def test_a_threshold_leaves_the_nearest_share(share: float, seed: int, multiple: int, now: float, coarse: bool) -> None:
    coupling = coupling_of("residual")
    score = torch.randn(coupling.count, generator=torch.Generator().manual_seed(seed))
    score = score.round() if coarse else score
    found = threshold_for(coupling, score, torch.tensor(share), "macs", multiple, torch.tensor(now))
    candidates = torch.cat([score, score.max()[None] + 1.0])
    shares = coupling.share(torch.stack([_order(score, one) for one in candidates]), "macs", multiple)
    mine = coupling.share(_order(score, found), "macs", multiple)
    assert abs(float(mine) - share) == pytest.approx(float((shares - share).abs().min()), abs=1e-6)
    again = threshold_for(coupling, score, torch.tensor(share), "macs", multiple, found)
    assert torch.equal(again, found)


@settings(max_examples=40, deadline=None)
@given(share=st.floats(0.1, 1.0), seed=st.integers(0, 99), multiple=st.sampled_from([1, 4]))
def test_rounding_leaves_what_was_steered_to(share: float, seed: int, multiple: int) -> None:
    coupling = coupling_of("residual")
    score = torch.randn(coupling.count, generator=torch.Generator().manual_seed(seed))
    score = score - threshold_for(coupling, score, torch.tensor(share), "macs", multiple, torch.tensor(0.0))
    keep = coupling.keep_best(score, share, "macs", multiple)
    if all(bool((score[one] >= 0).any()) for one in coupling.sets):
        assert torch.equal(keep, score >= 0)
    assert all(bool(keep[one].any()) for one in coupling.sets)
