"""Promise 1: right after `compress`, and after some steps, the network computes the method's formula."""

import copy

import pytest
import torch
from torch.func import functional_call

from paretorch import Plan, compress
from tests import decisions
from tests.contract.cases import COVER, EVERY, METHODS, MODELS, STEPS, attach, build, only_in_contract
from tests.contract.loop import optimizer_of, train
from tests.contract.reference import noise, relaxed


def expected_weights(plan: Plan, training: bool) -> dict[str, torch.Tensor]:
    step = int(plan.metrics()["step"])
    beta, shift = plan.metrics().get("temperature", 1.0), plan.metrics().get("shift", 0.0)
    weights = {}
    for name, chain in decisions.relaxed(plan.model).items():
        w = plan.model.state_dict()[name]  # what is trained; the layer itself computes with the formula of it
        own = {r.kind: r.decision.detach() for r in chain.relaxations()}
        exponent = next((r.scale_exponent() for r in chain.relaxations() if r.kind == "precision"), 0)
        epsilon = noise(0, name, step, w.shape) if training else None
        value = relaxed(
            plan.methods(), own, w, beta=beta, shift=shift, epsilon=epsilon, exponent=exponent, together=len(own) > 1
        )
        weights |= dict.fromkeys(chain.names, value)
    return weights


@pytest.mark.parametrize(("method", "model"), only_in_contract(EVERY, COVER))
def test_computes_the_formula(method: str, model: str) -> None:
    network = build(model)
    plain = copy.deepcopy(network)
    plan = attach(network, method, model)
    optimizer = optimizer_of(plan)
    x = MODELS[model].batch(6)
    for steps in (0, 5):
        train(network, plan, optimizer, x, steps)
        for training in (True, False):
            network.train(training)
            weights = expected_weights(plan, training)
            own = {k: v for k, v in network.state_dict().items() if k in plain.state_dict() and k not in weights}
            expected = functional_call(plain.train(training), {**own, **weights}, x, tie_weights=False)
            torch.testing.assert_close(network(x), expected, rtol=1e-4, atol=1e-5)
            for name, value in weights.items():
                torch.testing.assert_close(_attribute(network, name), value, rtol=1e-5, atol=1e-6)
        network.train()


def _attribute(network: torch.nn.Module, name: str) -> torch.Tensor:
    owner, _, attribute = name.rpartition(".")
    return getattr(network.get_submodule(owner), attribute)


@pytest.mark.parametrize("model", list(MODELS))
def test_first_forward_keeps_the_scale(model: str) -> None:
    network = build(model).eval()
    x = MODELS[model].batch(6)
    before = network(x)
    compress(network, *METHODS["sparsity-printed"](), steps=STEPS)
    torch.testing.assert_close(network(x), before, rtol=1e-4, atol=1e-5)
