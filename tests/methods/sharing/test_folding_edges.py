"""Folding where it is awkward: some groups, wrapped networks, layers of zeros, unlike layers, wrong arguments."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from paretorch import compress
from paretorch.errors import ConfigError, DivergenceError
from paretorch.methods.sharing import SoftSharing, fold, layer_similarity
from paretorch.workflows.folding_curve import folding_curve
from tests.methods.sharing.cases import attach, batch, build
from tests.methods.sharing.test_folding import mixes


def test_the_curve_of_one_group() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)), *(nn.Conv1d(4, 4, 1) for _ in range(2)))
    compress(network, SoftSharing(), steps=4)
    for only, counts in (("[012]", [3, 2, 1]), (nn.Conv1d, [2, 1]), (None, [5, 4, 3, 2])):
        assert [point.layers for point in folding_curve(network, lambda _: 0.0, only)] == counts
    with pytest.raises(ConfigError, match="layers=1: 2 groups of layers share, each for itself, so at least 2 stay"):
        fold(network, layers=1)
    with pytest.raises(ConfigError, match="selects none of the layers that share"):
        next(folding_curve(network, lambda _: 0.0, "head*"))
    with pytest.raises(ConfigError, match="compress it with SoftSharing"):
        next(folding_curve(build("linear"), lambda _: 0.0))


@pytest.mark.parametrize("wrap", [torch.optim.swa_utils.AveragedModel, nn.Sequential, torch.compile])
def test_what_is_around_the_network_is_left_behind(wrap: Callable[[nn.Module], nn.Module]) -> None:
    network = build("linear")
    attach(network, "one")
    around = wrap(network)
    small = fold(around, threshold=0.9)
    assert type(small) is type(network)
    assert small.paretorch_folding[0].layers == layer_similarity(network)[0].layers
    torch.testing.assert_close(small(batch("linear")), network(batch("linear")))
    assert [point.layers for point in folding_curve(around, lambda _: 0.0)] == [4, 3, 2, 1]


@pytest.mark.parametrize("how", ["all", "fewer", "one"])
def test_without_a_limit_nothing_changes_but_what_is_stored(how: str) -> None:
    network = build("linear")
    attach(network, how)
    small = fold(network)
    assert small.paretorch_folding[0].stored == {"all": 4, "fewer": 2, "one": 1}[how]
    torch.testing.assert_close(small(batch("linear")), network(batch("linear")))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_recurrent_stack_may_be_the_whole_model(kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    stack, x = kind(4, 4, num_layers=3), torch.randn(5, 2, 4)
    keys = list(stack.state_dict())
    plan = compress(stack, SoftSharing(templates=1), steps=4)
    before = stack(x)[0]
    small = fold(stack)
    assert [folding.runs for folding in small.paretorch_folding] == [(1, 1, 1), (1, 1, 1)]
    torch.testing.assert_close(small(x)[0], before)
    plain = plan.finalize()
    assert list(plain.state_dict()) == keys
    torch.testing.assert_close(plain(x)[0], before)


@pytest.mark.parametrize("how", ["one", "masked", "everything"])
def test_a_recurrent_network_folds_after_it_was_moved(how: str) -> None:
    network = build("lstm")
    attach(network, how)
    network.to(torch.float64)
    small = fold(network, layers=2)
    assert small(batch("lstm").double()).dtype == torch.float64
    assert small.double().to("meta")(batch("lstm").double().to("meta")).shape == (6, 3)
    assert network.to("meta").head.weight.is_meta, "layers are moved before the templates on the root are"


@pytest.mark.parametrize("how", ["fold", "harden"])
def test_layers_that_are_nearly_multiples_stay_two(how: str) -> None:
    network = build("linear")
    plan = compress(network, SoftSharing(threshold=1.0 if how == "harden" else None), steps=4)
    first, second, third, _ = mixes(network)
    with torch.no_grad():
        second.s.copy_(-2.0 * (first.s + 1e-4 * third.s))  # orthogonal, of norm 1
        third.s.copy_(first.s / 3)
    before = network(batch("linear"))
    if how == "harden":
        plan.harden()
        torch.testing.assert_close(network(batch("linear")), before, rtol=0, atol=1e-6)
    small = fold(network, threshold=None if how == "fold" else 1.0)
    assert small.paretorch_folding[0].runs == (1, 2, 1, 3)
    torch.testing.assert_close(small(batch("linear")), before, rtol=0, atol=1e-6)
    assert fold(network, threshold=0.999999).paretorch_folding[0].runs == (1, 1, 1, 2)


@pytest.mark.parametrize("zeros", [(0,), (1, 3), (0, 1, 2, 3)])
def test_layers_of_zeros_take_nothing_from_the_others(zeros: tuple[int, ...]) -> None:
    network = build("linear")
    attach(network, "all")
    own = mixes(network)
    with torch.no_grad():
        for mix in own:
            mix.s.copy_(own[0].s)
        for i in zeros:
            own[i].s.zero_()
    small = fold(network, layers=1)
    (folding,) = small.paretorch_folding
    assert folding.error < 1e-6
    assert len(zeros) == 4 or folding.scales == pytest.approx([float(i not in zeros) for i in range(4)])
    torch.testing.assert_close(small(batch("linear")), network(batch("linear")))


def test_a_fold_of_unlike_layers_keeps_what_weighs_most() -> None:
    network = build("linear")
    attach(network, "all")
    with torch.no_grad():
        for i, mix in enumerate(mixes(network)):
            mix.s.copy_((1.0 + i) * torch.eye(4)[i])
        for i in range(4):  # orthogonal layers, the last of them the largest
            getattr(network, f"paretorch_template_0_{i}").copy_(torch.eye(8)[i].outer(torch.ones(8)))
    (folding,) = fold(network, layers=1).paretorch_folding
    assert folding.errors == pytest.approx((1.0, 1.0, 1.0, 0.0))


def test_a_sharded_network_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    network = build("linear")
    attach(network, "one")
    monkeypatch.setattr("paretorch.methods.sharing.folding.is_sharded", lambda _: True)
    with pytest.raises(ConfigError, match="load its full state into a copy"):
        fold(network, threshold=0.9)


@pytest.mark.parametrize("hard", [False, True])
def test_what_diverged_is_not_folded(hard: bool) -> None:
    network = build("linear")
    plan = attach(network, "all")
    if hard:
        plan.harden()
    with torch.no_grad():
        mixes(network)[1].s.fill_(float("nan"))
    told = r"3\.weight is not finite" if hard else r"3\.weight has sharing decisions that are not finite"
    with pytest.raises(DivergenceError, match=told):
        fold(network, threshold=0.9)


def test_bad_input_is_named() -> None:
    plain = build("linear")
    with pytest.raises(ConfigError, match="compress it with SoftSharing"):
        fold(plain, threshold=0.9)
    shared = build("linear")
    plan = attach(shared, "fewer")
    for threshold in (-0.1, 1.1, float("nan"), "high"):
        with pytest.raises(ConfigError, match="from 0 to 1"):
            fold(shared, threshold=threshold)
    with pytest.raises(ConfigError, match="either threshold"):
        fold(shared, threshold=0.5, layers=2)
    with pytest.raises(ConfigError, match="only 4 layers share"):
        fold(shared, layers=5)
    with pytest.raises(ConfigError, match="1 or more"):
        fold(shared, layers=0)
    with pytest.raises(ConfigError, match=r"1\.weight and others of its group are stored as they are"):
        fold(fold(shared, layers=2), layers=1)
    with pytest.raises(ConfigError, match="not str"):
        fold("shared", threshold=0.9)
    with pytest.raises(ConfigError, match="before finalize"):
        fold(plan.finalize(), threshold=0.9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_whatever_torch_takes_for_the_default_dtype(dtype: torch.dtype) -> None:
    network = build("linear")
    attach(network, "fewer")
    expected = layer_similarity(network)[0].matrix
    torch.set_default_dtype(dtype)
    try:
        assert torch.equal(layer_similarity(network)[0].matrix, expected)
        small = fold(fold(network), layers=3)
    finally:
        torch.set_default_dtype(torch.float32)
    assert {tensor.dtype for tensor in small.state_dict().values()} == {torch.float32}


@pytest.mark.parametrize("folded", [False, True])
def test_two_networks_in_one_module_keep_to_themselves(folded: bool) -> None:
    networks = [build("linear", seed) for seed in (0, 1)]
    for network in networks:
        attach(network, "fewer")
    both = nn.ModuleDict({name: fold(one) if folded else one for name, one in zip("ab", networks, strict=True)})
    found = layer_similarity(both)
    assert [one.layers[0] for one in found] == ["a.1.weight", "b.1.weight"]
    for one, network in zip(found, networks, strict=True):
        torch.testing.assert_close(one.matrix, layer_similarity(network)[0].matrix)
    with pytest.raises(ConfigError, match="2 networks that share: give fold one of them"):
        fold(both)
    assert len(fold(both["b"]).paretorch_folding) == 1
