"""Loading of states: of older versions and other optimizers, with entries of users and schedulers, and some that do not fit."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict
from torch.optim import lr_scheduler

from paretorch.errors import ConfigError
from paretorch.optim import AnnealedAdam, AvaGrad

from . import reference
from .common import build, every_kind, network, train, weights


def test_loads_the_state_of_the_authors_avagrad() -> None:
    """Which has no version, none of our options, a `gamma` per group, and plain numbers as steps."""
    model = network()
    params = list(model.parameters())
    state = {
        i: {"step": 7, "exp_avg": torch.full_like(p, 0.1), "exp_avg_sq": torch.full_like(p, 0.2)}
        for i, p in enumerate(params)
    }
    group = {"lr": 0.5, "betas": (0.9, 0.99), "eps": 0.3, "weight_decay": 0.1, "gamma": 2.0, "params": [0, 1, 2, 3]}
    optimizer = AvaGrad(params, maximize=True, seed=5)
    optimizer.load_state_dict({"state": state, "param_groups": [group]})
    (loaded,) = optimizer.param_groups
    assert (loaded["lr"], loaded["eps"], loaded["betas"]) == (0.5, 0.3, (0.9, 0.99))
    assert "gamma" not in loaded
    assert loaded["maximize"], "what the old state does not know stays"
    assert loaded["seed"] == 5
    expected = reference.Memory(7, *({i: s[k].clone() for i, s in state.items()} for k in ("exp_avg", "exp_avg_sq")))
    grads = [torch.randn_like(p) for p in params]
    before = [p.detach().clone() for p in params]
    for p, g in zip(params, grads, strict=True):
        p.grad = g
    optimizer.step()
    settings = reference.Settings(0.5, 0.9, 0.99, 0.3, 0.1, maximize=True)
    for p, w in zip(params, reference.avagrad(before, grads, settings, expected), strict=True):
        torch.testing.assert_close(p.detach(), w, rtol=1e-5, atol=1e-6)
    assert float(optimizer.state[params[0]]["step"]) == 8


def test_a_state_before_versions_gets_the_new_options() -> None:
    model = network()
    optimizer = AvaGrad(model.parameters())
    train(model, optimizer, 2)
    old = copy.deepcopy(optimizer.state_dict())
    for key in ("version", "state_dtype", "seed", "fused"):
        del old["param_groups"][0][key]
    second = AvaGrad(model.parameters(), seed=3)
    second.load_state_dict(old)
    assert second.param_groups[0]["version"] == 1
    assert second.param_groups[0]["seed"] == 3
    train(model, second, 1)


@every_kind
def test_entries_of_schedulers_and_users_are_restored(kind) -> None:
    model = network()
    groups = [{"params": [p], "name": name} for name, p in model.named_parameters()]
    first = build(kind, groups)
    cycle = lr_scheduler.OneCycleLR(first, max_lr=0.2, total_steps=20)
    for step in range(3):
        train(model, first, 1, seed=step)
        cycle.step()
    second = build(kind, [{"params": [p]} for p in model.parameters()])
    second.load_state_dict(first.state_dict())
    assert [group["name"] for group in second.param_groups] == [name for name, _ in model.named_parameters()]
    resumed = lr_scheduler.OneCycleLR(second, max_lr=0.2, total_steps=20, last_epoch=2)
    resumed.load_state_dict(cycle.state_dict())
    cycle.step(), resumed.step()
    assert first.param_groups[1]["lr"] == second.param_groups[1]["lr"] != 0.2


def test_options_of_adams_implementation_are_not_loaded() -> None:
    model = network()
    adam = torch.optim.Adam(model.parameters(), fused=True)
    train(model, adam, 1)
    optimizer = AvaGrad(model.parameters(), foreach=True)
    optimizer.load_state_dict(adam.state_dict())
    (group,) = optimizer.param_groups
    assert (group["foreach"], group["fused"]) == (True, None)


def unfit(model: nn.Module) -> dict[str, tuple[dict, str]]:
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, sgd, 1)
    adam = torch.optim.Adam(model.parameters(), eps=0.0)
    train(model, adam, 1)
    narrow = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    other = AvaGrad(narrow.parameters())
    train(narrow, other, 1)
    longer = AvaGrad(model.parameters())
    train(model, longer, 1)
    for entry in longer.state.values():
        entry["exp_avg"] = entry["exp_avg"][..., None].repeat_interleave(2, -1)
    return {
        "nothing": ({}, "not the state of an optimizer"),
        "sgd": (sgd.state_dict(), "momentum_buffer and no exp_avg"),
        "no eps": (adam.state_dict(), "eps must be a positive number"),
        "narrow": (other.state_dict(), r"the shape \(4, 6\), the parameter \(8, 6\)"),
        "longer": (longer.state_dict(), r"the shape \(8, 6, 2\), the parameter \(8, 6\)"),
        "fewer": (AvaGrad(list(model.parameters())[:2]).state_dict(), "has 2 parameters, that of the optimizer 4"),
        "groups": (AvaGrad([{"params": [p]} for p in model.parameters()]).state_dict(), "4 parameter groups"),
    }


@pytest.mark.parametrize("case", ["nothing", "sgd", "no eps", "narrow", "longer", "fewer", "groups"])
def test_a_state_that_does_not_fit_changes_nothing(case) -> None:
    model = network()
    state, words = unfit(model)[case]
    optimizer = AvaGrad(model.parameters(), lr=0.3)
    train(model, optimizer, 1)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ConfigError, match=words):
        optimizer.load_state_dict(state)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for key, entry in before["state"].items():
        assert torch.equal(entry["exp_avg_sq"], after["state"][key]["exp_avg_sq"])


def test_annealed_adam_counts_after_loading() -> None:
    """ε depends on the step, so a loaded state must go on counting."""
    whole, halves = network(), network()
    options = {"steps": 10, "eps": 0.01, "powers": (0.25, 1.5)}
    through, first = AnnealedAdam(whole.parameters(), **options), AnnealedAdam(halves.parameters(), **options)
    train(whole, through, 3)
    train(whole, through, 3, seed=2)
    train(halves, first, 3)
    second = AnnealedAdam(halves.parameters(), **options)
    second.load_state_dict(first.state_dict())
    train(halves, second, 3, seed=2)
    assert torch.equal(weights(whole), weights(halves))


def by_name(optimizer: torch.optim.Optimizer, state_dict: dict) -> dict:
    """Torch's documented way to load by names what was saved in another order: a hook that rewrites the state."""
    (saved,) = state_dict["param_groups"]
    (group,) = optimizer.state_dict()["param_groups"]
    keys = dict(zip(saved["param_names"], saved["params"], strict=True))
    names = dict(zip(group["params"], group["param_names"], strict=True))
    state = {key: state_dict["state"][keys[name]] for key, name in names.items()}
    groups = [{**saved, "params": group["params"], "param_names": group["param_names"]}]
    return {"state": state, "param_groups": groups}


@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_hook_may_rewrite_what_is_loaded(kind, dtype) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to(dtype)
    first = build(kind, model.named_parameters())
    model(torch.randn(3, 4, dtype=dtype)).square().sum().backward()
    first.step()
    second = build(kind, list(model.named_parameters())[::-1])
    seen: list[int] = []
    second.register_load_state_dict_pre_hook(by_name)
    second.register_load_state_dict_post_hook(lambda o: seen.append(len(o.state)))
    for _ in range(2):
        second.load_state_dict(first.state_dict())
    for p in model.parameters():
        assert torch.equal(second.state[p]["exp_avg"], first.state[p]["exp_avg"])
        assert second.state[p]["exp_avg_sq"].dtype == torch.float32
    assert seen == [4, 4]


@every_kind
def test_adam_may_have_kept_its_numbers_in_tensors(kind) -> None:
    model = network()
    adam = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), betas=(torch.tensor(0.5), torch.tensor(0.75)))
    train(model, adam, 1)
    optimizer = build(kind, model.parameters())
    optimizer.load_state_dict(adam.state_dict())
    train(model, optimizer, 1)
    assert optimizer.param_groups[0]["betas"] == (0.5, 0.75)


@every_kind
def test_a_state_is_of_tensors_and_plain_values(kind) -> None:
    """Torch gathers the states of sharded networks, and refuses to where it meets anything else."""
    model = network()
    first = build(kind, model.parameters(), state_dtype=torch.bfloat16)
    train(model, first, 1)
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_optimizer_state_dict(model, first, options=whole)
    model.zero_grad()
    second = build(kind, model.parameters())
    set_optimizer_state_dict(model, second, state, options=whole)
    assert second.param_groups[0]["state_dtype"] == torch.bfloat16
    for p in model.parameters():
        assert torch.equal(second.state[p]["exp_avg_sq"], first.state[p]["exp_avg_sq"])
    # As it was saved before.
    older = first.state_dict()
    older["param_groups"][0]["state_dtype"] = torch.bfloat16
    build(kind, model.parameters()).load_state_dict(older)
