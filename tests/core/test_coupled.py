"""Coupled channels: one decision for all that carries a channel, and the channel really goes."""

import copy
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn

import paretorch as pt
from paretorch.core.channels.couple import couple
from paretorch.deploy.measure.structure import count_macs
from paretorch.edits.keep_channels import channel_edits, cut_state
from paretorch.errors import ConfigError
from tests.core.coupled_nets import NETS, Excited, Residual, Written

X = torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(1))


def _trained(name: str, *methods: pt.ContinuousSparsification | pt.SMOL) -> tuple[nn.Module, pt.Plan]:
    torch.manual_seed(0)
    model = NETS[name][0]()
    plan = pt.compress(model, *methods, steps=8, example=X)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.02, momentum=0.9)
    for _ in range(8):
        nn.functional.cross_entropy(model(X), torch.arange(5) % 4).backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    plan.harden(optimizer)
    return model.eval(), plan


def _half(**options: object) -> pt.ContinuousSparsification:
    return pt.ContinuousSparsification(target=0.5, group="channel", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NETS)
def test_the_layers_that_can_lose_channels_are_found(name: str) -> None:
    build, expected = NETS[name]
    model = build()
    coupling = couple(model, X, {f"{n}.weight" for n, m in model.named_modules() if n}, "this")
    assert {cut.module for cut in coupling.cuts if cut.side == "out"} - {"norm", "norm_a", "norm_b"} == expected


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *((name, "macs") for name in NETS),
        *(pytest.param(name, "weights", marks=[pytest.mark.contract] * (name != "residual")) for name in NETS),
    ],
)
def test_channels_go_and_outputs_stay(name: str, count: str, tmp_path: Path) -> None:
    target = {"padded": 0.3, "normed": 0.2, "repeated": 0.3, "written": 0.3}.get(name, 0.5)
    model, plan = _trained(name, pt.ContinuousSparsification(target=target, group="channel", count=count))
    expected, asked = model(X).detach(), plan.metrics()["sparsity"]
    dense, before = plan.dense_state_dict(), sum(p.numel() for p in NETS[name][0]().parameters())
    small = plan.finalize()
    assert torch.allclose(small(X), expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    assert sum(p.numel() for p in small.parameters()) < before
    assert list(small.state_dict()) == list(NETS[name][0]().state_dict())
    if count == "macs":
        macs = sum(count_macs(small, X).values()) / sum(count_macs(NETS[name][0](), X).values())
        assert macs == pytest.approx(1 - asked, abs=1e-6)
    # Zeros in the full network say the same.
    full = NETS[name][0]().eval()
    full.load_state_dict(dense)
    assert torch.allclose(full(X), expected, atol=1e-6)
    # The file brings the small network back, and a second time into the small one.
    pt.save(small, tmp_path / "small.pare")
    again = pt.load(tmp_path / "small.pare", into=NETS[name][0]()).eval()
    assert torch.equal(again(X), small(X))
    assert torch.equal(pt.load(tmp_path / "small.pare", into=again)(X), small(X))


@pytest.mark.parametrize("name", ["residual", "shuffled"])
def test_beside_precision(name: str, tmp_path: Path) -> None:
    model, plan = _trained(name, _half(), pt.SMOL(target_bits=3.0))
    expected = model(X)
    small = plan.finalize()
    assert torch.allclose(small(X), expected, atol=1e-5)
    pt.save(small, tmp_path / "small.pare")
    assert torch.equal(pt.load(tmp_path / "small.pare", into=NETS[name][0]()).eval()(X), small(X))


def test_a_byte_budget_counts_the_network_without_its_channels(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Residual()
    budget = 4500
    plan = pt.compress(model, pt.ContinuousSparsification(group="channel"), steps=4, example=X, budget=budget)
    for _ in range(4):
        model(X).square().mean().backward()
        plan.step()
    small = plan.finalize()
    pt.save(small, tmp_path / "small.pare")
    assert 0.8 * budget < (tmp_path / "small.pare").stat().st_size <= budget


def test_the_network_computes_its_formula() -> None:
    torch.manual_seed(0)
    model = Residual()
    plain = copy.deepcopy(model)
    plan = pt.compress(model, _half(init=-0.2, penalty=1e-3), steps=8, example=X)
    assert torch.allclose(model.eval()(X), plain.eval()(X), atol=1e-6)  # the factor 1/σ(init) keeps the scale
    model.train()
    for _ in range(3):
        model(X).square().mean().backward()
        plan.step()
    s, shift, beta = model.paretorch_sparsity_shared, plan.metrics()["shift"], plan.metrics()["temperature"]
    assert s.shape == (8 + 12 + 10,)
    gate = torch.sigmoid(beta * (s + shift)) / torch.sigmoid(torch.tensor(-0.2))
    stem, inner, out = gate.split([8, 12, 10])
    rows = {
        "stem": stem,
        "norm": stem,
        "b": stem,
        "norm_b": stem,
        "a": inner,
        "norm_a": inner,
        "c": out,
        "project": out,
    }
    state = {name: value.detach() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for key, value in plan.dense_state_dict().items():
            module = key.rpartition(".")[0]
            kind = key.rpartition(".")[2]
            if module in rows and kind in ("weight", "bias"):
                trained = state[key]
                expected = trained * rows[module].view(-1, *[1] * (trained.dim() - 1))
                assert torch.allclose(value, expected, rtol=1e-5), key
            elif key in state:
                assert torch.equal(value, state[key]), key


def test_excluded_producers_keep_their_group() -> None:
    model = Residual()
    plan = pt.compress(model, _half(exclude=("project",)), steps=4, example=X)
    assert model.paretorch_sparsity_shared.shape == (8 + 12,)
    small = plan.finalize()
    assert small.project.out_channels == small.c.out_channels == 10
    assert small.project.in_channels == small.stem.out_channels
    assert small.stem.out_channels + small.a.out_channels < 20


def test_without_an_example_channels_are_decided_layer_by_layer() -> None:
    model = Residual()
    small = pt.compress(model, _half(), steps=4).finalize()
    assert small.stem.out_channels == 8  # zeros, but nothing gone


def test_channels_that_fill_up_stay_silent() -> None:
    torch.manual_seed(0)
    model, steps = Residual(), 120
    half = _half(count="macs", multiple=4, lr=1.0)
    plan = pt.compress(model, half, steps=steps, example=X)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(X) - 1.0).square().mean().backward()
        optimizer.step()
        plan.step()
    model.eval()
    soft = model(X)
    plan.harden()
    hard = model(X)
    small = plan.finalize()
    convolutions = [m for m in small.modules() if isinstance(m, nn.Conv2d)]
    assert all(m.out_channels % 4 == 0 or m.out_channels == 10 for m in convolutions)  # 10: one that lost none
    assert any(bool((m.weight.flatten(1) == 0).all(1).any()) for m in convolutions)
    assert torch.allclose(small(X), hard, atol=1e-5)
    assert torch.allclose(hard, soft, atol=1e-4)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), name=st.sampled_from(sorted(NETS)))
def test_a_cut_state_is_the_state_of_the_cut_network(seed: int, name: str) -> None:
    model = NETS[name][0]().eval()
    coupling = couple(model, X, {f"{n}.weight" for n, _ in model.named_modules()}, "this")
    generator = torch.Generator().manual_seed(seed)
    keep = torch.rand(coupling.count, generator=generator) < 0.5
    for one in coupling.sets:
        keep[one[0]] = True
    edits = channel_edits(coupling.kept(keep))
    state = cut_state(model.state_dict(), model, edits)
    for edit in edits:
        edit.apply(model)
    assert {k: v.shape for k, v in state.items()} == {k: v.shape for k, v in model.state_dict().items()}
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    assert model(X).shape == (5, 4)


def test_what_cannot_be_met_is_refused_before_training() -> None:
    with pytest.raises(ConfigError, match=r"every layer keeps a channel, so at most 0\.\d+ of the macs"):
        pt.compress(
            Residual(), pt.ContinuousSparsification(target=0.999, group="channel", count="macs"), steps=4, example=X
        )
    with pytest.raises(ConfigError, match="finds no channel that can be removed"):
        pt.compress(nn.Sequential(nn.Flatten(), nn.Linear(48, 4)), _half(), steps=4, example=X)
    with pytest.raises(ConfigError, match="count='flops'"):
        pt.compress(Residual(), _half(count="flops"), steps=4, example=X)
    with pytest.raises(ConfigError, match='count="macs" needs group="channel"'):
        pt.compress(Residual(), pt.ContinuousSparsification(target=0.5, count="macs"), steps=4, example=X)
    with pytest.raises(ConfigError, match="leave layers out with exclude="):
        pt.compress(Residual(), _half(overrides={"a": {"group": "weight"}}), steps=4, example=X)
    with pytest.raises(ConfigError, match=r"The example of shape \(1, 7, 4, 4\) does not run"):
        pt.compress(Residual(), _half(), steps=4, example=torch.randn(2, 7, 4, 4))
    with pytest.raises(ConfigError, match=r"does not run: .*type"):
        pt.compress(Residual(), _half(), steps=4, example=X.double())
    with pytest.raises(ConfigError, match="example: give a batch of inputs"):
        pt.compress(Residual(), _half(), steps=4, example=X[:0])
    model = Excited()
    pt.compress(model, _half(), steps=4, example=X)  # and the model was left as it was


def test_a_network_that_cannot_be_followed_is_told_in_a_sentence_alone(capfd: pytest.CaptureFixture[str]) -> None:
    class Branching(Residual):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x if x.sum() > 0 else -x)

    with pytest.raises(ConfigError, match=r"cannot be followed, since torch\.export fails"):
        pt.compress(Branching(), _half(), steps=4, example=X)
    assert capfd.readouterr() == ("", ""), "torch prints the graph that it cannot export"


def test_a_network_with_a_width_in_its_forward_pass_is_cut_elsewhere() -> None:
    half = pt.ContinuousSparsification(target=0.3, group="channel")
    small = pt.compress(Written(), half, steps=4, example=X).finalize()
    assert small.stem.out_channels == 6
    assert small.inner.out_channels < 9


def test_resuming_continues_bit_for_bit() -> None:
    def make() -> tuple[nn.Module, pt.Plan]:
        torch.manual_seed(0)
        model = Residual()
        return model, pt.compress(model, _half(), steps=8, example=X)

    def go(model: nn.Module, plan: pt.Plan, steps: int) -> None:
        for _ in range(steps):
            model(X).square().mean().backward()
            plan.step()
            model.zero_grad()

    model, plan = make()
    go(model, plan, 3)
    saved, decisions = copy.deepcopy(model.state_dict()), copy.deepcopy(plan.state_dict())
    go(model, plan, 3)
    other, again = make()
    other.load_state_dict(saved)
    again.load_state_dict(decisions)
    go(other, again, 3)
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_left_trains_while_a_loss_of_before_is_alive(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = Residual().to(dtype), X.to(dtype)
    plan = pt.compress(model, _half(), steps=2, example=x)
    loss = model(x).square().mean()
    loss.backward()
    plan.harden()
    small = plan.finalize()
    assert all(p.grad is None or p.grad.shape == p.shape for p in small.parameters())
    small(x).square().mean().backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in small.parameters())
    assert loss.requires_grad


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_layer_without_outputs_is_left_alone() -> None:
    class Empty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.none, self.b = nn.Linear(4, 8), nn.Linear(8, 0), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.a(x).relu()
            return torch.cat([self.b(x), self.none(x)], 1)

    plan = pt.compress(Empty(), _half(), steps=1, example=torch.ones(1, 4))
    small = plan.finalize()
    assert small.a.out_features == small.none.in_features == 4
    assert small(torch.ones(1, 4)).shape == (1, 3)


def test_it_compiles_without_a_break() -> None:
    torch.manual_seed(0)
    model = Residual()
    plan = pt.compress(model, _half(), steps=8, example=X)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(X), model(X), atol=1e-5)
    compiled(X).square().mean().backward()
    plan.step()
    assert torch.allclose(compiled(X), model(X), atol=1e-5)
