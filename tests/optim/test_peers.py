"""Peers by name: built from recipes, with weight decay in the gradient, resumed from their state."""

from __future__ import annotations

import io
import sys

import pytest
import torch

from paretorch.errors import ConfigError, MissingExtraError
from paretorch.optim.peers import PEERS, peer, set_mode
from paretorch.training import optimizers
from paretorch.training.recipe import OPTIMIZERS, OptimizerRecipe

from .common import network, train, weights


def build(name: str, model, decay: float = 0.0):
    return optimizers.build(OptimizerRecipe(name=name, lr=0.01), optimizers.dense_groups(model, decay), 0.01)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_name_learns_decays_and_resumes(name) -> None:
    if name in PEERS:
        pytest.importorskip("pytorch_optimizer")
    whole, halves, decayed = network(), network(), network()
    start = weights(whole)
    through, first = build(name, whole), build(name, halves)
    for step in range(14):  # longer than AdaShift's queue
        train(whole, through, 1, seed=step)
    for step in range(7):
        train(halves, first, 1, seed=step)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = build(name, halves)
    optimizers.load_state(second, torch.load(file, weights_only=True))
    for step in range(7, 14):
        train(halves, second, 1, seed=step)
    assert not torch.equal(weights(whole), start)
    torch.testing.assert_close(weights(halves), weights(whole), rtol=1e-6, atol=1e-8)
    optimizer = build(name, decayed, decay=1.0)
    for step in range(14):
        train(decayed, optimizer, 1, seed=step)
    assert not torch.allclose(weights(decayed), weights(whole)), "the decay does something"


def test_amsgrad_and_radam_are_torchs() -> None:
    model = network()
    assert build("amsgrad", model).param_groups[0]["amsgrad"]
    assert not build("adam", model).param_groups[0]["amsgrad"]
    assert isinstance(build("radam", model), torch.optim.RAdam)


@pytest.mark.parametrize("name", PEERS)
def test_graphs_and_the_missing_package_are_refused(name, monkeypatch) -> None:
    groups = [{"params": list(network().parameters())}]
    with pytest.raises(ConfigError, match="--no-graph"):
        peer(name, groups, {"lr": 0.1, "capturable": True})
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'paretorch\[rivals\]'"):
        peer(name, groups, {"lr": 0.1, "capturable": False})


def test_a_schedule_free_optimizer_is_evaluated_at_its_average() -> None:
    pytest.importorskip("pytorch_optimizer")
    model = network()
    optimizer = build("schedule-free", model)
    for step in range(5):
        train(model, optimizer, 1, seed=step)
    trained = weights(model)
    set_mode(optimizer, training=False)
    average = weights(model)
    assert not torch.allclose(trained, average)
    set_mode(optimizer, training=False)
    assert torch.equal(weights(model), average), "once is enough"
    set_mode(optimizer, training=True)
    torch.testing.assert_close(weights(model), trained)


def test_muon_has_matrices_and_adam_the_rest_at_a_share_of_the_rate() -> None:
    pytest.importorskip("pytorch_optimizer")
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3))
    optimizer = build("muon", model, decay=0.1)
    wide, rest = optimizer.param_groups
    assert [tuple(one.shape) for one in wide["params"]] == [(3, 2, 3, 3)]
    assert all(one.dim() == 1 for one in rest["params"])
    assert wide["weight_decay"] == rest["weight_decay"] == 0.1
    optimizers.set_rate(optimizer, 0.02)
    assert wide["lr"] == 0.02
    assert rest["lr"] == pytest.approx(0.001)
