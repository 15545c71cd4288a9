"""Every search against the literal transcription of its algorithm: θ̂, masks, decisions, and the retrained tickets."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paretorch.errors import ConfigError
from paretorch.workflows.tickets import (
    CS,
    IMP,
    IMPC,
    ISS,
    Search,
    SequentialCS,
    StochasticSupermask,
    Supermask,
    read_ticket,
    run_search,
)
from tests.workflows.tickets import algorithms
from tests.workflows.tickets.points import MASKED, Points, bench, network

K = 5
STORE = K / Points.steps
ROUNDS = 3


def compare(search: Search, expected: algorithms.Found, folder: Path) -> None:
    rows = run_search(search, bench(), folder)
    assert [row["round"] for row in rows] == list(range(1, search.rounds + 1))
    for row, m in zip(rows, expected.masks, strict=True):
        theta_hat, masks = read_ticket(folder, row["round"])
        assert masks.keys() == m.keys()
        assert all(torch.equal(masks[name], m[name]) for name in m)
        for name, value in expected.theta_hat.items():
            torch.testing.assert_close(theta_hat[name], value.detach(), rtol=1e-5, atol=1e-6)
        kept = sum(int(one.sum()) for one in m.values())
        assert row["sparsity"] == pytest.approx(1 - kept / sum(one.numel() for one in m.values()))
        if not search.method.frozen:
            _, accuracy = algorithms.retrained(network(), expected.theta_hat, m)
            assert row["accuracy"] == row["test_accuracy"] == pytest.approx(accuracy, abs=1e-6)
    end = torch.load(folder / "carry.pt", weights_only=True)["end"]
    for name, value in expected.theta[-1].items():
        torch.testing.assert_close(end["weights"][name], value.detach(), rtol=1e-4, atol=1e-5)
    for name, value in expected.s[-1].items():
        alive = value.detach().isfinite()
        torch.testing.assert_close(end["decisions"][name]["s"][alive], value.detach()[alive], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rewind", [False, True])
@pytest.mark.parametrize("s_init", [-0.05, 0.03])
def test_continuous_sparsification_follows_algorithm_2(s_init: float, rewind: bool, tmp_path: Path) -> None:
    method = CS(init=s_init, penalty=1e-3, final_temperature=50.0, anneal=1.0)
    expected = algorithms.algorithm_2(
        network(), s_init=s_init, penalty=1e-3, final=50.0, rounds=ROUNDS, k=K, rewind=rewind
    )
    assert len({int(sum(m.sum() for m in masks.values())) for masks in expected.masks}) > 1
    compare(Search(method, ROUNDS, STORE, rewind), expected, tmp_path)


@pytest.mark.parametrize(
    ("options", "trained"),
    [
        ({"rescale": False, "lr": 0.5, "drops": [0.5, 0.75]}, {"lr_s": 0.5, "drops": (0.5, 0.75), "rescale": False}),
        ({"rescale": False, "lr": 0.02, "solver": "adam"}, {"lr_s": 0.02, "adam_s": True, "rescale": False}),
    ],
)
def test_the_printed_masks_with_the_optimizer_of_the_weights(
    options: dict[str, Any], trained: dict[str, Any], tmp_path: Path
) -> None:
    method = CS(init=0.03, penalty=1e-3, final_temperature=50.0, anneal=1.0, **options)
    expected = algorithms.algorithm_2(
        network(), s_init=0.03, penalty=1e-3, final=50.0, rounds=2, k=K, rewind=False, **trained
    )
    assert (
        0 < int(sum(m.sum() for m in expected.masks[-1].values())) < sum(m.numel() for m in expected.masks[-1].values())
    )
    compare(Search(method, 2, STORE), expected, tmp_path)


def test_a_search_says_how_its_masks_are_trained() -> None:
    with pytest.raises(ConfigError, match="solver='lbfgs'"):
        Search(CS(solver="lbfgs"))
    with pytest.raises(ConfigError, match="are of SGD"):
        Search(CS(solver="adam", drops=(0.5,)))


@pytest.mark.parametrize("k", [0, 4, algorithms.T])
def test_the_iterate_of_any_step_can_be_stored(k: int, tmp_path: Path) -> None:
    expected = algorithms.algorithm_2(network(), s_init=0.0, penalty=0.0, final=50.0, rounds=2, k=k, rewind=True)
    method = CS(init=0.0, penalty=0.0, final_temperature=50.0, anneal=1.0)
    compare(Search(method, 2, k / Points.steps, rewind=True), expected, tmp_path)


@pytest.mark.parametrize("rewind", [False, True])
def test_sequential_search_drops_the_lowest_s(rewind: bool, tmp_path: Path) -> None:
    method = SequentialCS(rate=0.3, penalty=1e-3, final_temperature=50.0, anneal=1.0)
    expected = algorithms.algorithm_2(
        network(), s_init=0.0, penalty=1e-3, final=50.0, rounds=ROUNDS, k=K, rewind=rewind, rate=0.3
    )
    compare(Search(method, ROUNDS, STORE, rewind), expected, tmp_path)


@pytest.mark.parametrize(
    ("options", "pools"),
    [
        ({"rate": 0.3}, [(0.3, MASKED)]),
        ({"rate": 0.3, "scope": "layer"}, [(0.3, MASKED[:1]), (0.3, MASKED[1:])]),
    ],
)
@pytest.mark.parametrize("method", [IMP, IMPC])
def test_magnitude_pruning_follows_algorithm_3(
    method: type[IMP], options: dict[str, object], pools: list[tuple[float, tuple[str, ...]]], tmp_path: Path
) -> None:
    expected = algorithms.algorithm_3(network(), pools=pools, rounds=ROUNDS, k=K, rewind=method is IMP)
    compare(Search(method(**options), ROUNDS, STORE), expected, tmp_path)


@pytest.mark.parametrize("rewind", [False, True])
def test_stochastic_sparsification_follows_algorithm_4(rewind: bool, tmp_path: Path) -> None:
    expected = algorithms.algorithm_4(network(), s_init=1.0, penalty=1e-3, lr_s=5.0, rounds=ROUNDS, k=K, rewind=rewind)
    compare(Search(ISS(lr=5.0, penalty=1e-3), ROUNDS, STORE, rewind), expected, tmp_path)


def test_a_supermask_is_algorithm_2_with_weights_that_stay(tmp_path: Path) -> None:
    method = Supermask(init=0.05, penalty=1e-3, final_temperature=50.0, anneal=1.0)
    expected = algorithms.algorithm_2(
        network(), s_init=0.05, penalty=1e-3, final=50.0, rounds=2, k=0, rewind=False, lr=0.0
    )
    compare(Search(method, 2), expected, tmp_path)


def test_a_stochastic_supermask_is_algorithm_4_with_weights_that_stay(tmp_path: Path) -> None:
    expected = algorithms.algorithm_4(
        network(), s_init=1.0, penalty=1e-3, lr_s=20.0, rounds=2, k=0, rewind=False, lr=0.0
    )
    compare(Search(StochasticSupermask(lr=20.0, penalty=1e-3), 2), expected, tmp_path)


@pytest.mark.parametrize("method", [Supermask(), StochasticSupermask()])
def test_a_supermask_leaves_the_weights_and_is_judged_as_it_is(method: Supermask, tmp_path: Path) -> None:
    (row,) = run_search(Search(method, 1), bench(), tmp_path)
    theta, masks = read_ticket(tmp_path, 1)
    end = torch.load(tmp_path / "carry.pt", weights_only=True)["end"]["weights"]
    initial = network().state_dict()
    assert all(torch.equal(end[name], value) for name, value in initial.items())
    assert all(torch.equal(theta[name], value) for name, value in initial.items())
    model, task = network(), Points()
    for name, mask in masks.items():
        model.get_parameter(name).data *= mask * (2.0 if isinstance(method, Supermask) else 1.0)
    assert row["accuracy"] == task.evaluate(model)["test_accuracy"]
    assert not (tmp_path / "round-1" / "ticket").exists()
