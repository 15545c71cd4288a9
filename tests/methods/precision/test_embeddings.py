"""Embeddings: a row of padding stays zero on a grid that has no zero, and what rescales itself is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paretorch import SMOL, ContinuousSparsification, compress, load, save
from paretorch.core.attach.weights import RelaxedWeight
from paretorch.errors import ConfigError, UndecidedWarning
from paretorch.methods.precision.rivals import BSQ, DSQ, LSQ, PACT, SLB, DoReFa, LQNets, Uniform

METHODS: dict[str, tuple[Any, ...]] = {
    "smol": (SMOL(target_bits=3.0),),
    "smol-channel": (SMOL(target_bits=3.0, group="channel"),),
    "smol-network": (SMOL(penalty=1e-3, group="network"),),
    "smol-zero": (SMOL(target_bits=1.0, zero_precision=True),),
    "smol-masks": (ContinuousSparsification(target=0.5), SMOL(target_bits=1.5)),
    **{kind.__name__: (kind(bits=2),) for kind in (BSQ, DSQ, LSQ, PACT, SLB, DoReFa, LQNets, Uniform)},
}


def net(kind: type[nn.Module] = nn.Embedding, **options: Any) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(kind(11, 6, **options), nn.Flatten(), nn.LazyLinear(3))


def tokens() -> torch.Tensor:
    return torch.randint(0, 11, (16, 4), generator=torch.Generator().manual_seed(1))


@pytest.mark.filterwarnings("ignore::paretorch.errors.PareWarning")
@pytest.mark.parametrize("name", METHODS)
def test_padding_stays_zero_from_the_search_to_the_file(name: str, tmp_path: Path) -> None:
    model, x = net(padding_idx=-3), tokens()
    model(x)
    plan = compress(model, *METHODS[name], steps=4)
    optimizer = torch.optim.SGD(plan.param_groups(weight_decay=1e-3), lr=1e-3)
    for _ in range(4):
        assert not model[0](torch.tensor([8])).any()
        model(x).square().sum().backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    plan.harden(optimizer)
    model.eval()
    before = model(x)
    small = plan.finalize()
    assert not small.get_parameter("0.weight")[8].any()
    assert small.get_parameter("0.weight")[:8].any()
    assert torch.equal(small(x), before)
    save(small, tmp_path / "x.pare")
    fresh = net(padding_idx=-3)
    fresh(x)
    assert torch.equal(load(tmp_path / "x.pare", into=fresh).get_parameter("0.weight"), small.get_parameter("0.weight"))


def test_padding_counts_no_bits() -> None:
    model = nn.Sequential(nn.Embedding(10, 4, padding_idx=0))
    plan = compress(model, Uniform(bits=2), steps=4)
    assert float(plan.metrics()["bits"]) == pytest.approx(1.8)
    plan = compress(nn.Sequential(nn.Embedding(10, 4, padding_idx=0)), SMOL(target_bits=2.0), steps=4)
    plan.harden()
    assert float(plan.metrics()["bits"]) == pytest.approx(2.0, abs=0.02)


def test_padding_that_has_values_or_is_trained_elsewhere_has_a_grid() -> None:
    model = nn.Sequential(nn.Embedding(10, 4, padding_idx=0))
    nn.init.normal_(model[0].weight)  # type: ignore[arg-type]
    assert compress(model, SMOL(target_bits=2.0), steps=4).finalize().get_parameter("0.weight").all()
    tied = nn.Sequential(nn.Embedding(10, 4, padding_idx=0), nn.Linear(4, 10, bias=False))
    tied[1].weight = tied[0].weight
    assert compress(tied, SMOL(target_bits=2.0), steps=4).finalize().get_parameter("0.weight").all()


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize("method", [SMOL(target_bits=2.0), LSQ(bits=2)])
def test_max_norm_is_refused(kind: type[nn.Module], method: Any) -> None:
    model = nn.Sequential(kind(10, 4, max_norm=1.0), nn.Linear(4, 2))
    with pytest.raises(ConfigError, match=r"0\.weight is rescaled by max_norm .* exclude it"):
        compress(model, method, steps=4)
    compress(model, replace(method, exclude="0.*"), steps=4)
    compress(nn.Sequential(kind(10, 4, max_norm=1.0)), ContinuousSparsification(target=0.5), steps=4)  # zero stays zero


@pytest.mark.parametrize(
    "method",
    [
        SMOL(target_bits=3.0),
        SMOL(target_bits=3.0, group="channel"),
        SMOL(target_bits=3.0, group="channel", scale="auto"),
    ],
    ids=["weight", "real", "channel"],
)
def test_rows_that_no_batch_shows_have_the_bits_of_the_others(method: SMOL) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(40, 16), nn.Flatten(), nn.Linear(64, 5))
    plan = compress(model, method, steps=60)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.05)
    tokens = torch.randint(0, 30, (60, 16, 4))  # rows 30 to 39 are never looked up
    for x in tokens:
        (model(x) - x.float().sum(1, keepdim=True) / 60).square().mean().backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    with pytest.warns(UndecidedWarning, match=r"10 of 40 rows of 0\.weight were in no batch"):
        plan.harden(optimizer)
    weights = [m for m in model.modules() if isinstance(m, RelaxedWeight)]
    relaxation = next(r for m in weights if "0.weight" in m.names for r in m.relaxations())
    bits = relaxation.bits(relaxation.grid(relaxation.decision)).expand(40, 16)
    assert abs(float(bits[30:].float().mean() - bits[:30].float().mean())) < 0.5
