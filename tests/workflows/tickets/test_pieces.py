"""The pieces of a search by themselves: what is dropped, how a round begins, what a search refuses."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from paretorch.core.compress import compress
from paretorch.errors import ConfigError, DivergenceError
from paretorch.workflows.tickets import CS, IMP, IMPC, ISS, METHODS, Search, SequentialCS, Supermask, make_method
from paretorch.workflows.tickets.methods import hold
from paretorch.workflows.tickets.search import make_searches, search_from
from paretorch.workflows.tickets.state import (
    RoundEnd,
    drop_lowest,
    read_decisions,
    read_masks,
    read_weights,
    sparsity,
    write_decisions,
)
from paretorch.workflows.tickets.storage import Storage, read_ticket, save, save_ticket
from tests.workflows.tickets.points import RECIPE


def scattered(seed: int, *shape: int) -> Tensor:
    """Numbers with some ties."""
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 4).round() / 4


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), rate=st.floats(0.01, 0.99), share=st.floats(0, 1))
def test_exactly_the_share_of_the_remaining_goes_and_it_is_the_lowest(seed: int, rate: float, share: float) -> None:
    scores = {"a": scattered(seed, 5, 4), "b": scattered(seed + 1, 7)}
    torch.manual_seed(seed)
    remaining = {name: torch.rand_like(value) < share for name, value in scores.items()}
    kept = drop_lowest(scores, remaining, rate)
    before = torch.cat([remaining[name].flatten() for name in scores])
    after = torch.cat([kept[name].flatten() for name in scores])
    values = torch.cat([scores[name].flatten() for name in scores])
    gone = before & ~after
    assert not bool((after & ~before).any())
    assert int(gone.sum()) == round(rate * int(before.sum()))
    if gone.any() and after.any():
        assert values[gone].max() <= values[after].min()


def test_a_score_that_is_not_finite_is_refused() -> None:
    with pytest.raises(DivergenceError, match="no longer finite"):
        drop_lowest({"a": torch.tensor([1.0, math.nan])}, {"a": torch.tensor([True, True])}, 0.5)


def end_of(decisions: dict[str, dict[str, Tensor]], weights: dict[str, Tensor] | None = None) -> RoundEnd:
    masks = {name: one["s"] >= 0 for name, one in decisions.items()}
    return RoundEnd(weights or {}, decisions, masks)


def test_algorithm_2_restarts_with_the_final_temperature() -> None:
    s = torch.tensor([-0.5, -0.001, 0.0, 0.0005, 0.3])
    restarted = CS(init=0.1, final_temperature=200.0).restart(end_of({"w": {"s": s}}))["w"]["s"]
    torch.testing.assert_close(restarted, torch.tensor([-100.0, -0.2, 0.0, 0.1, 0.1]))


def test_many_restarts_stay_finite_and_change_no_mask() -> None:
    method, s = CS(init=0.05), torch.tensor([-0.3, 0.3])
    for _ in range(30):
        s = method.restart(end_of({"w": {"s": s}}))["w"]["s"]
    assert bool(s.isfinite().all())
    assert torch.sigmoid(s)[0] == 0.0
    assert (s >= 0).tolist() == [False, True]


def test_iss_drops_for_good_what_has_fallen_below_its_start() -> None:
    state = {"s": torch.tensor([0.5, 1.0, 3.0, 2.0]), "dropped": torch.tensor([False, False, False, True])}
    restarted = ISS(init=1.0).restart(end_of({"w": state}))["w"]
    assert restarted["dropped"].tolist() == [True, False, False, True]
    assert torch.equal(restarted["s"], state["s"])


def test_imp_drops_each_kind_at_its_own_rate() -> None:
    weights = {"conv": scattered(0, 4, 3, 3, 3), "more": scattered(1, 2, 4, 3, 3), "matrix": scattered(2, 10, 10)}
    decisions = {name: {"s": torch.ones_like(value)} for name, value in weights.items()}
    masks = IMP(rate=0.15, dense_rate=0.2).ticket(end_of(decisions, weights))
    assert int((~masks["matrix"]).sum()) == 20
    assert int((~masks["conv"]).sum() + (~masks["more"]).sum()) == round(0.15 * (108 + 72))
    each = IMP(rate=0.25, scope="layer").ticket(end_of(decisions, weights))
    assert [int((~mask).sum()) for mask in each.values()] == [27, 18, 25]


def test_the_state_of_a_network_is_read_behind_its_masks() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2))
    plain = {name: value.clone() for name, value in model.state_dict().items()}
    compress(model, CS(init=-0.3).relaxation(exclude="3"), steps=5)
    found = read_weights(model)
    assert found.keys() == plain.keys()
    assert all(torch.equal(found[name], value) for name, value in plain.items())
    decisions = read_decisions(model)
    assert decisions.keys() == {"0.weight"}
    decisions["0.weight"]["s"][0] = 0.7
    write_decisions(model, decisions)
    assert torch.equal(read_decisions(model)["0.weight"]["s"], decisions["0.weight"]["s"])
    assert int(read_masks(model)["0.weight"].sum()) == 9


def test_a_held_mask_is_what_the_network_computes_with_and_stays() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    weight, mask = model.weight.detach().clone(), torch.rand(3, 4) < 0.5
    plan = hold(model, {"weight": mask}, (), steps=3)
    torch.testing.assert_close(model.weight, weight * mask)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    assert torch.equal(read_masks(model)["weight"], mask)
    assert plan.metrics()["sparsity"] == pytest.approx(sparsity({"weight": mask}))
    assert torch.equal(plan.finalize().weight != 0, mask)


@settings(max_examples=15, deadline=None)
@given(rows=st.integers(1, 7), columns=st.integers(1, 7), seed=st.integers(0, 100))
def test_a_ticket_comes_back_from_its_file(
    rows: int, columns: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("ticket")
    masks = {"w": scattered(seed, rows, columns) > 0, "b": torch.ones(3, 1, 2, dtype=torch.bool)}
    save(folder / "stored.pt", {"w": torch.full((rows, columns), 3.0), "b": torch.zeros(3, 1, 2)})
    save_ticket(folder, 4, masks)
    weights, found = read_ticket(folder, 4)
    assert torch.equal(weights["w"], torch.full((rows, columns), 3.0))
    assert found.keys() == masks.keys()
    assert all(torch.equal(found[name], mask) for name, mask in masks.items())


@pytest.mark.parametrize("name", METHODS)
def test_a_search_comes_back_from_its_record(name: str) -> None:
    search = Search(make_method(name, {}), 3, seed=7)
    again = search_from(search.as_dict())
    assert again.as_dict() == search.as_dict()
    assert (again.name, again.rewinds, again.trainings()) == (search.name, search.rewinds, search.trainings())


def test_names_tell_settings_apart() -> None:
    searches = [Search(CS(init=-0.1)), Search(CS(init=0.1)), Search(IMP()), Search(IMPC()), Search(CS(), seed=2)]
    names = [search.name for search in searches]
    assert names == [
        "cs-init-0.1-seed0",
        "cs-init0.1-seed0",
        "imp-rate0.2-seed0",
        "imp-c-rate0.2-seed0",
        "cs-init0-seed2",
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Search(CS(), 0), "rounds=0"),
        (lambda: Search(CS(), store=-1), "store=-1"),
        (lambda: Search(CS(), rewind="yes"), "true or false"),
        (lambda: Search(CS(init=50.0)), "init=50.0"),
        (lambda: Search(CS(gate="door")), "gate='door'"),
        (lambda: Search(IMP(rate=1.0)), "rate=1.0"),
        (lambda: Search(IMP(dense_rate=0.0)), "dense_rate=0.0"),
        (lambda: Search(IMP(scope="street")), "scope='street'"),
        (lambda: Search(IMP(), rewind=False), "imp always rewinds"),
        (lambda: Search(IMPC(), rewind=True), "imp-c never rewinds"),
        (lambda: Search(SequentialCS(rate=-0.1)), "rate=-0.1"),
        (lambda: Search(ISS(lr=0.0)), "lr=0.0"),
        (lambda: Search(ISS(penalty="much")), "penalty='much'"),
        (lambda: Search(Supermask(), 1, 2.0), "trains no weights"),
        (lambda: Search(CS(), store=9).require_fit(8), "a round has 8 epochs"),
        (lambda: make_method("lottery", {}), "choose one of cs, imp"),
        (lambda: make_method("imp", {"init": 0.1}), "imp has no option 'init'; it has: rate, dense_rate, scope"),
    ],
)
def test_what_cannot_work_is_refused(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]


def test_nothing_is_written_before_a_refusal(tmp_path: Path) -> None:
    from paretorch.training import Recipe

    with pytest.raises(ConfigError, match="a round has 2 epochs"):
        Storage.join(tmp_path / "new", Recipe(epochs=2), [Search(CS(), store=3)])
    assert not (tmp_path / "new").exists()


def test_further_options_that_vary_are_searches_of_their_own() -> None:
    wanted = {
        "method": "cs",
        "init": [0.1, 0.2],
        "seeds": [0],
        "vary": {"penalty": [0.0, 1e-10], "final_temperature": [50.0]},
    }
    searches = make_searches(wanted, "here")
    assert [one.name for one in searches] == [
        f"cs-init{init}-penalty{penalty}-final_temperature50-seed0" for penalty in ("0", "1e-10") for init in (0.1, 0.2)
    ]
    assert [one.method.penalty for one in searches] == [0.0, 0.0, 1e-10, 1e-10]  # type: ignore[attr-defined]
    assert search_from(json.loads(json.dumps(searches[-1].as_dict()))).as_dict() == searches[-1].as_dict()


@pytest.mark.parametrize("vary", [{"penalty": 1e-8}, {"penalty": []}, [1e-8]])
def test_what_varies_is_a_table_of_lists(vary: object) -> None:
    with pytest.raises(ConfigError, match="table of lists"):
        make_searches({"method": "cs", "seeds": [0], "vary": vary}, "here")
    with pytest.raises(ConfigError, match="there is no option 'rates'"):
        make_searches({"method": "cs", "seeds": [0], "vary": {"rates": [1.0]}}, "here")


def test_a_folder_of_an_earlier_version_is_gone_on_with(tmp_path: Path) -> None:
    search = Search(CS(init=0.1))
    Storage.join(tmp_path, RECIPE, [search])
    path = tmp_path / search.name / "search.json"
    record = json.loads(path.read_text())
    for option in ("solver", "drops", "rescale"):
        del record["options"][option]
    path.write_text(json.dumps(record))
    Storage.join(tmp_path, RECIPE, [search])
    with pytest.raises(ConfigError, match=r"rescale \(there True, now False\)"):
        Storage.join(tmp_path, RECIPE, [Search(CS(init=0.1, rescale=False))])
