"""Channels that pass norms and learned slopes: one by one where these allow it, by whole groups of a group norm."""

import warnings
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

import paretorch as pt
from paretorch.core.channels.couple import couple
from paretorch.deploy.rivals.channels import prune_channels
from paretorch.edits import KeepChannels
from paretorch.edits.keep_channels import channel_edits, cut_state
from paretorch.errors import ConfigError
from tests.core.through_nets import Again, Branches, Net, Own, Reused

Build = Callable[[], Net]


def _net(between: Callable[[], nn.Module], dims: int = 2) -> Build:
    return lambda: Net(between(), dims)


# Name -> network, and what loses outputs beside the second convolution, which always does.
NETS: dict[str, tuple[Build, set[str]]] = {
    "slopes": (_net(lambda: nn.PReLU(12)), {"one", "between"}),
    "one slope": (_net(nn.PReLU), {"one"}),
    "norm, slopes": (
        _net(lambda: nn.Sequential(nn.BatchNorm2d(12), nn.PReLU(12))),
        {"one", "between.0", "between.1"},
    ),
    "slopes of two places": (Reused, {"one", "between", "more"}),
    "instance norm": (_net(lambda: nn.InstanceNorm2d(12)), {"one", "between"}),
    "instance norm, affine": (_net(lambda: nn.InstanceNorm2d(12, affine=True)), {"one", "between"}),
    "instance norm, tracked": (_net(lambda: nn.InstanceNorm2d(12, track_running_stats=True)), set()),
    "instance norm, both": (
        _net(lambda: nn.InstanceNorm2d(12, affine=True, track_running_stats=True)),
        {"one", "between"},
    ),
    "instance norm of sequences": (_net(lambda: nn.InstanceNorm1d(12, affine=True), 1), {"one", "between"}),
    "instance norm of volumes": (_net(lambda: nn.InstanceNorm3d(12), 3), {"one", "between"}),
    "instance norm without a module": (_net(lambda: Own(F.instance_norm)), {"one"}),
    "instance norm after a bent zero": (_net(lambda: nn.Sequential(nn.Softplus(), nn.InstanceNorm2d(12))), set()),
    "the same, affine": (
        _net(lambda: nn.Sequential(nn.Softplus(), nn.InstanceNorm2d(12, affine=True))),
        {"one", "between.1"},
    ),
    "twice": (_net(lambda: Again(nn.InstanceNorm2d(12))), {"one", "between.inner"}),
    "batch norm, of the batch alone": (
        _net(lambda: nn.BatchNorm2d(12, affine=False, track_running_stats=False)),
        {"one", "between"},
    ),
    "batch norm without a scale": (_net(lambda: nn.BatchNorm2d(12, affine=False)), set()),
    "group norm": (_net(lambda: nn.GroupNorm(4, 12)), {"one", "between"}),
    "group norm, plain": (_net(lambda: nn.GroupNorm(4, 12, affine=False)), {"one", "between"}),
    "group norm by channels": (_net(lambda: nn.GroupNorm(12, 12)), {"one", "between"}),
    "group norm of one group": (_net(lambda: nn.GroupNorm(1, 12)), set()),
    "group norm without a module": (_net(lambda: Own(lambda x: F.group_norm(x, 4))), set()),
    "group norm over branches": (Branches, {"one", "between", "other"}),
    "layer norm": (_net(lambda: nn.LayerNorm([12, 5, 5])), set()),
}
LOSING = [name for name in NETS if NETS[name][1]]


def _coupled(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    coupling = couple(model, x, {f"{n}.weight" for n, _ in model.named_modules() if n}, "this")
    return {cut.module: cut.index for cut in coupling.cuts if cut.side == "out"}


def _hardened(name: str, seed: int = 0, target: float = 0.5) -> tuple[Net, pt.Plan]:
    torch.manual_seed(seed)
    model = NETS[name][0]()
    method = pt.ContinuousSparsification(target=target, group="channel", lr=1.0, exclude=("two", "head"))
    plan = pt.compress(model, method, steps=6, example=model.x)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.05)
    for _ in range(6):
        F.cross_entropy(model(model.x), torch.arange(4)).backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    plan.harden(optimizer)
    return model.eval(), plan


@pytest.mark.parametrize("name", NETS)
def test_what_loses_channels_is_found(name: str) -> None:
    build, lose = NETS[name]
    model = build()
    assert set(_coupled(model, model.x)) == {"two", *lose}


@pytest.mark.parametrize("name", LOSING)
def test_channels_go_and_outputs_stay(name: str, tmp_path: Path) -> None:
    for seed in range(2):
        model, plan = _hardened(name, seed)
        x = torch.randn(3, *model.x.shape[1:])
        before, expected = plan.dense_state_dict(), model(x).detach()
        small = plan.finalize()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # an instance norm of another width does no more than warn
            torch.testing.assert_close(small(x), expected, atol=1e-5 * float(expected.abs().max()), rtol=1e-5)
        full = NETS[name][0]().eval()
        full.load_state_dict(before)
        torch.testing.assert_close(full(x), expected, atol=1e-6, rtol=1e-5)  # zeros say the same
        assert small.one.out_channels < 12
        assert list(small.state_dict()) == list(full.state_dict())
        small(x).square().mean().backward()  # and what is left trains
        assert all(p.grad is not None and p.grad.shape == p.shape for p in small.parameters())
        pt.save(small, tmp_path / "small.pare")
        again = pt.load(tmp_path / "small.pare", into=NETS[name][0]()).eval()
        assert str(again) == str(small)
        assert torch.equal(again(x), small(x))
        assert torch.equal(pt.load(tmp_path / "small.pare", into=again)(x), small(x))


@pytest.mark.parametrize(
    "name",
    [
        *("slopes", "instance norm, both", "group norm"),
        *(pytest.param(name, marks=pytest.mark.contract) for name in ("instance norm", "group norm, plain")),
    ],
)
def test_what_is_left_is_exported_and_reported(name: str, tmp_path: Path) -> None:
    model, plan = _hardened(name)
    small = plan.finalize().eval()
    pt.export_onnx(small, model.x, tmp_path / "small.onnx")  # compares outputs
    counted = sum(p.numel() for p in small.parameters())
    assert pt.report(small, example=model.x, latency=False).parameters == counted
    pt.save(small, tmp_path / "small.pare", norms=torch.bfloat16, fold_norms=True)
    assert pt.report(tmp_path / "small.pare").parameters == counted


def test_slopes_are_cut_and_never_gated() -> None:
    torch.manual_seed(0)
    model = Net(nn.PReLU(12))
    with torch.no_grad():
        model.between.weight.copy_(torch.arange(12.0))
    method = pt.ContinuousSparsification(target=0.5, group="channel", exclude=("two", "head"))
    plan = pt.compress(model, method, steps=1, example=model.x)
    assert not parametrize.is_parametrized(model.between)  # zero is zero, whatever its slope
    plan.harden()
    stays = plan.dense_state_dict()["one.weight"].flatten(1).any(1)
    small = plan.finalize()
    assert torch.equal(small.between.weight, torch.arange(12.0)[stays])
    assert small.between.num_parameters == int(stays.sum()) < 12


def test_groups_of_a_norm_go_whole() -> None:
    model = Net(nn.GroupNorm(4, 12))
    index = _coupled(model, model.x)["between"]
    assert torch.equal(index, index[::3].repeat_interleave(3))
    assert len(index.unique()) == 4
    small = _hardened("group norm")[1].finalize()
    assert small.between.num_groups < 4
    assert small.between.num_channels == 3 * small.between.num_groups == small.one.out_channels


def test_norms_with_different_groups_share_what_neither_divides() -> None:
    model = Net(nn.Sequential(nn.GroupNorm(4, 12), nn.ReLU(), nn.GroupNorm(6, 12)))
    assert torch.equal(_coupled(model, model.x)["one"], torch.arange(2).repeat_interleave(6))


def test_a_fixed_channel_keeps_its_group() -> None:
    class Shown(Net):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            return super().forward(x), self.one(x)[:, -1]

    model = Shown(nn.GroupNorm(4, 12))
    index = _coupled(model, model.x)["between"]
    assert ((index < 0) == (torch.arange(12) // 3 == 3)).all()


@pytest.mark.filterwarnings("ignore::paretorch.errors.MissedTargetWarning")
@pytest.mark.parametrize("multiple", [2, 4])
def test_layers_are_filled_up_with_whole_groups(multiple: int) -> None:
    torch.manual_seed(0)
    model = Net(nn.GroupNorm(6, 12))
    method = pt.ContinuousSparsification(target=0.5, group="channel", multiple=multiple, exclude=("two", "head"))
    plan = pt.compress(model, method, steps=1, example=model.x)
    plan.harden()
    expected = model.eval()(model.x).detach()
    small = plan.finalize()
    assert small.one.out_channels % multiple == 0
    torch.testing.assert_close(small(model.x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore::paretorch.errors.MissedTargetWarning")
@pytest.mark.parametrize("name", ["slopes", "instance norm, affine", "group norm"])
def test_a_cut_network_is_cut_again(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = NETS[name][0]()
    x = model.x
    for _ in range(2):
        method = pt.ContinuousSparsification(target=0.3, group="channel", exclude=("two", "head"))
        plan = pt.compress(model, method, steps=1, example=x)
        plan.harden()
        expected = model.eval()(x).detach()
        plan.finalize()
        torch.testing.assert_close(model(x), expected, atol=1e-5, rtol=1e-5)
    assert 1 < model.one.out_channels < 9
    pt.save(model, tmp_path / "small.pare")
    assert torch.equal(pt.load(tmp_path / "small.pare", into=NETS[name][0]()).eval()(x), model(x))


@pytest.mark.parametrize("by", ["magnitude", "torch-pruning"])
@pytest.mark.parametrize("name", ["slopes", "instance norm, affine", "group norm"])
def test_other_ways_to_choose_cut_the_same(name: str, by: str) -> None:
    if by == "torch-pruning":
        pytest.importorskip("torch_pruning")
    torch.manual_seed(0)
    model = NETS[name][0]()
    small = prune_channels(model, model.x, 0.5, by=by)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())
    assert small(model.x).shape == (4, 4)


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from(["group", "instance", "slopes"]),
    groups=st.integers(2, 5),
    each=st.integers(1, 4),
    affine=st.booleans(),
    seed=st.integers(0, 999),
)
def test_removing_does_what_zeroing_does(kind: str, groups: int, each: int, affine: bool, seed: int) -> None:
    width = groups * each
    torch.manual_seed(seed)
    between = {
        "group": lambda: nn.GroupNorm(groups, width, affine=affine),
        "instance": lambda: nn.InstanceNorm1d(width, affine=affine),
        "slopes": lambda: nn.PReLU(width),
    }[kind]()
    model = nn.Sequential(nn.Conv1d(2, width, 3), between, nn.Conv1d(width, 3, 1)).eval()
    with torch.no_grad():
        for parameter in between.parameters():
            parameter.normal_()
    x = torch.randn(2, 2, 9)
    coupling = couple(model, x, {"0.weight", "2.weight"}, "this")
    assert coupling.count == (groups if kind == "group" else width)
    keep = torch.rand(coupling.count) < 0.5
    keep[seed % coupling.count] = True
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if name in coupling.gates:
                tensor.mul_(coupling.grouping(name, tensor.shape).expand(keep.float()))
    expected = model(x)
    edits = channel_edits(coupling.kept(keep))
    state = cut_state(model.state_dict(), model, edits)
    for edit in edits:
        edit.apply(model)
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    torch.testing.assert_close(model(x), expected, atol=1e-4, rtol=1e-4)


def test_edits_that_tear_a_group_are_refused() -> None:
    model = Net(nn.GroupNorm(4, 12))
    edit = KeepChannels("ffe", 12, outputs=("between",))
    with pytest.raises(ConfigError, match="a part of a group of 'between'"):
        edit.apply(model)
    slopes = Net(nn.PReLU())
    with pytest.raises(ConfigError, match="for 12 channels, but 'between' has 1"):
        edit.apply(slopes)
    with pytest.raises(ConfigError, match="cuts the in side of 'between', a GroupNorm"):
        KeepChannels("fff", 12, inputs=("between",)).apply(model)
