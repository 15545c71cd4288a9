"""The sample to steer by: it weighs every layer by its size and reads all kinds at the same weights."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from paretorch import SMOL, ContinuousSparsification, compress
from paretorch.core.method import Method, Term
from paretorch.core.plan import Plan
from paretorch.core.step import sample
from tests.decisions import Gradients, decisions, noting, relaxed


def stepped(model: nn.Module, *methods: Method, steps: int = 4) -> tuple[Plan, list[Term]]:
    """A plan whose decisions stay as they are, and its terms after its first step, when they have their samples."""
    noted = [noting(replace(method, optimizer=Gradients())) for method in methods]
    plan = compress(model, *(method for method, _ in noted), steps=steps)
    plan.step()
    return plan, [term for _, terms in noted for term in terms]


def number(model: nn.Module, kind: str) -> None:
    """Every decision of a kind becomes the number of its entry, over all layers."""
    for i, s in enumerate(decisions(model, kind)):
        s.data.copy_(torch.arange(s.numel()).view(s.shape) + 1e5 * i)


def test_small_layers_are_read_whole() -> None:
    plan, (term,) = stepped(nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)), ContinuousSparsification(target=0.5))
    number(plan.model, "sparsity")
    assert term.read("sparsity").tolist() == [*range(15), *(1e5 + i for i in range(10))]
    torch.testing.assert_close(term.sample.share, torch.full((25,), 1 / 25))


@pytest.mark.parametrize("group", ["weight", "channel", "layer", (2, 2)])
def test_estimates_are_close_on_large_layers(group: str | tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "WHOLE", 0)
    monkeypatch.setattr(sample, "_SIZE", 2**15)
    model = nn.Sequential(nn.Conv2d(64, 96, 3), nn.Linear(512, 300), nn.Linear(10, 10))
    _, terms = stepped(model, ContinuousSparsification(target=0.5, group=group), SMOL(penalty=1e-4, group=group))
    generator = torch.Generator().manual_seed(0)
    for term in terms:
        assert float(term.sample.share.sum()) == pytest.approx(1.0, abs=1e-5)
        assert len(term.sample.share) < 40_000
        for decision in term.decisions():
            noise = torch.randn(decision.shape, generator=generator)
            trend = torch.linspace(-1, 1, decision.shape[0]).view(-1, *[1] * (decision.dim() - 1))
            decision.data.copy_(noise + trend)
        s = term.read(term.method.kind)
        for threshold in (-1.0, 0.0, 0.7):
            estimate = float(((s < threshold) * term.sample.share).sum())
            exact = float(term.mean(lambda _, s, at=threshold: (s < at).float()))
            assert estimate == pytest.approx(exact, abs=0.02)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("group", ["weight", "channel", (3, 2)])
def test_all_rooms_are_read_at_the_same_weights(group: str | tuple[int, ...], layout: torch.memory_format) -> None:
    """Each decision of the mask is set to the number of its weight's group of precision: both kinds must read alike."""
    model = nn.Sequential(nn.Conv2d(40, 50, 3), nn.Conv2d(6, 5, 2))
    model.to(memory_format=layout)
    _, terms = stepped(model, ContinuousSparsification(target=0.5), SMOL(penalty=1e-4, group=group))
    number(model, "precision")
    for chain in relaxed(model).values():
        grouping = chain.precision.grouping
        chain.sparsity.s.data.copy_(grouping.expand(chain.precision.s.detach()).expand(grouping.shape))
    for term in terms:
        assert torch.equal(term.read("sparsity"), term.read("precision"))


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((6, 5), torch.contiguous_format),
        ((6, 5, 3, 2), torch.contiguous_format),
        ((6, 5, 3, 2), torch.channels_last),
        ((6, 5, 3, 2, 2), torch.channels_last_3d),
    ],
)
def test_values_of_groups_are_read_where_those_of_weights_are(
    shape: tuple[int, ...], layout: torch.memory_format
) -> None:
    like = torch.empty(shape).contiguous(memory_format=layout)
    weights = torch.arange(like.numel()).view(shape)
    rows, columns = torch.meshgrid(torch.arange(6), torch.arange(5), indexing="ij")
    lying = weights.contiguous(memory_format=layout)
    seen = sample.some(lying, 7, like)
    assert seen.tolist() == lying.as_strided((like.numel(),), (1,))[::7].tolist()
    assert seen.data_ptr() == lying.data_ptr()
    assert torch.equal(sample.some(weights, 7, like), seen)
    ones = [1] * (len(shape) - 2)
    inner = math.prod(shape[2:])
    assert torch.equal(sample.some(rows[:, :1].reshape(6, 1, *ones), 7, like), seen // (5 * inner))
    assert torch.equal(sample.some(columns[:1].reshape(1, 5, *ones), 7, like), seen // inner % 5)


def test_a_weight_without_a_decision_reads_as_kept() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    _, (_, precision) = stepped(model, ContinuousSparsification(include="0", init=-1.0), SMOL(penalty=1e-4))
    assert precision.read("sparsity").tolist() == [-1.0] * 12 + [torch.inf] * 8
    assert precision.kept_sample().tolist() == [0.0] * 12 + [1.0] * 8


def test_a_change_of_layout_makes_a_new_sample() -> None:
    model = nn.Sequential(nn.Conv2d(4, 5, 3))
    plan, (term,) = stepped(model, ContinuousSparsification(target=0.5, group="weight"))
    before = term.sample
    plan.step()
    assert term.sample is before
    model.to(memory_format=torch.channels_last)
    plan.step()
    assert term.sample is not before


def test_the_steps_see_every_weight_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "WHOLE", 0)
    monkeypatch.setattr(sample, "_LEAST", 2**8)
    monkeypatch.setattr(sample, "_SIZE", 2**8)
    plan, (term,) = stepped(nn.Linear(90, 70), ContinuousSparsification(target=0.5), steps=100)
    number(plan.model, "sparsity")
    k = math.ceil(6300 / len(term.sample.share))
    seen = []
    for _ in range(k):
        seen += term.read("sparsity").tolist()
        plan.step()
    assert k > 1
    assert set(seen) == set(range(6300))
    assert len(seen) - 6300 < k  # the last of a layer may be read twice


def test_a_share_is_kept_closer_than_one_sample_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "WHOLE", 0)
    monkeypatch.setattr(sample, "_SIZE", 2**12)
    plan, (term,) = stepped(nn.Linear(500, 400), ContinuousSparsification(target=0.99), steps=1)
    generator = torch.Generator().manual_seed(0)
    term.decisions()[0].data.copy_(torch.randn(400, 500, generator=generator))
    noise = float(term.sample.noise(torch.tensor(0.01))) / 0.01
    assert noise > 0.1  # of what is kept
    shares = []
    for _ in range(600):
        plan.step()
        shares.append(1 - plan.metrics()["sparsity"])
    assert max(abs(share / 0.01 - 1) for share in shares[300:]) < noise / 2
