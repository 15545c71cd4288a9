"""What the user's optimizer is given: decay of everything as torch has it, or of weights alone."""

import torch
from torch import nn

import paretorch as pt


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.LayerNorm(8), nn.Linear(8, 4))


def shapes(group: dict[str, object]) -> list[int]:
    return [one.dim() for one in group["params"]]  # type: ignore[attr-defined]


def test_norms_and_biases_without_decay() -> None:
    plan = pt.compress(network(), pt.SMOL(target_bits=4.0), steps=1)
    (whole,) = plan.param_groups(weight_decay=0.1)
    assert whole["weight_decay"] == 0.1
    weights, vectors = plan.param_groups(weight_decay=0.1, decay_vectors=False)
    assert (weights["weight_decay"], vectors["weight_decay"]) == (0.1, 0.0)
    assert set(shapes(weights)) == {4, 2}
    assert set(shapes(vectors)) == {1}
    assert {id(p) for p in (*weights["params"], *vectors["params"])} == {id(p) for p in whole["params"]}
    before = [one.detach().clone() for one in vectors["params"]]
    optimizer = torch.optim.SGD([weights, vectors], lr=1.0)
    for one in whole["params"]:
        one.grad = torch.zeros_like(one)
    start = float(weights["params"][0].norm())
    optimizer.step()
    assert all(torch.equal(one, old) for one, old in zip(vectors["params"], before, strict=True))
    assert float(weights["params"][0].norm()) < start


def test_ranges_of_activations_keep_their_own_decay() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    method = pt.SMOLActivations(target_bits=4.0)
    plan = pt.compress(model, method, steps=1, example=torch.zeros(2, 8))
    groups = plan.param_groups(weight_decay=0.1, decay_vectors=False)
    assert [set(shapes(group)) for group in groups[:2]] == [{2}, {1}]
    known = {id(one) for group in groups for one in group["params"]}
    assert len(known) == sum(len(group["params"]) for group in groups)
    assert known == {id(one) for group in plan.param_groups(weight_decay=0.1) for one in group["params"]}
