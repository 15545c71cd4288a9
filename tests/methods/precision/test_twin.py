"""One search, two networks: rounded with and without zero precision, each as its own plan would have done it."""

import pytest
import torch
from torch import Tensor, nn

from paretorch import SMOL, ContinuousSparsification, Plan, compress
from paretorch.core.method import Method
from paretorch.errors import ConfigError
from paretorch.methods.precision.grid import quantize
from paretorch.methods.precision.levels import load_search
from tests.contract.cases import MODELS, loss_of
from tests.decisions import bits, relaxed


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3))
    for layer in (model[0], model[2]):
        nn.init.normal_(layer.weight, std=0.3)
    return model


def searched(*methods: Method, steps: int = 12) -> Plan:
    plan = compress(net(), *methods, steps=steps)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.05)
    for _ in range(steps):
        loss_of(plan.model(MODELS["linear"].batch(8))).backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    return plan


def weights(plan: Plan) -> list[Tensor]:
    return [layer.paretorch_weight.latent.detach() for layer in (plan.model[0], plan.model[2])]  # type: ignore[index]


@pytest.mark.parametrize("group", ["weight", "channel", "layer"])
def test_the_same_precisions_with_and_without_zeros(group: str) -> None:
    plan = searched(SMOL(penalty=1e-3, lr=0.2, group=group, scale="fit"))
    twin = compress(net(seed=1), SMOL(penalty=1e-3, lr=0.2, group=group, scale="fit", zero_precision=True), steps=12)
    load_search(twin, plan.model.state_dict())
    plan.harden()
    twin.harden()
    assert plan.metrics()["step"] == twin.metrics()["step"] == 12
    assert twin.metrics()["bits"] < plan.metrics()["bits"]
    dropped = 0
    own, others = bits(plan.model), bits(twin.model)
    for w, (name, other) in zip(weights(plan), relaxed(twin.model).items(), strict=True):
        p = own[name]
        assert torch.equal(p, others[name])
        zero = w.abs() <= (w - quantize(w, p)).abs()
        dropped += int(zero.sum())
        torch.testing.assert_close(other.precision(w), torch.where(zero, 0.0, quantize(w, p)))
    assert dropped > 0


def test_a_target_of_its_own_and_a_state_that_goes_on() -> None:
    plan = searched(SMOL(target_bits=3.0))
    twin = compress(net(seed=1), SMOL(target_bits=1.5, zero_precision=True), steps=12)
    load_search(twin, plan.model.state_dict())
    twin.harden()
    assert twin.metrics()["bits"] == pytest.approx(1.5, abs=0.05)
    again = compress(net(seed=2), SMOL(target_bits=1.5, zero_precision=True), steps=12)
    again.model.load_state_dict(twin.model.state_dict())
    x = MODELS["linear"].batch(4)
    assert torch.equal(again.model.eval()(x), twin.model.eval()(x))


def test_what_is_no_search_of_the_same_plan() -> None:
    plan = searched(SMOL(target_bits=3.0), steps=2)
    state = plan.model.state_dict()

    def twin(*methods: Method, steps: int = 2) -> Plan:
        return compress(net(), *methods, steps=steps)

    with pytest.raises(ConfigError, match=r"more than rounding: precision\.group"):
        load_search(twin(SMOL(target_bits=3.0, group="layer")), state)
    with pytest.raises(ConfigError, match="more than rounding: steps"):
        load_search(twin(SMOL(target_bits=3.0), steps=3), state)
    with pytest.raises(ConfigError, match="more than rounding: sparsity"):
        load_search(twin(SMOL(target_bits=3.0), ContinuousSparsification(target=0.5)), state)
    with pytest.raises(ConfigError, match="no plan in it"):
        load_search(twin(SMOL(target_bits=3.0)), net().state_dict())
    hard = twin(SMOL(target_bits=3.0))
    hard.harden()
    with pytest.raises(ConfigError, match="hardened already"):
        load_search(hard, state)
    with pytest.raises(ConfigError, match="rounded already"):
        load_search(twin(SMOL(target_bits=3.0)), hard.model.state_dict())
