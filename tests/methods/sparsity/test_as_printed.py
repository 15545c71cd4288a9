"""`ContinuousSparsification.as_printed` is Algorithm 1 to the letter, with the optimizer that the weights have."""

import copy

import pytest
import torch

from paretorch import ContinuousSparsification, compress
from paretorch.errors import ConfigError
from tests.methods.sparsity.algorithm_1 import algorithm_1
from tests.methods.sparsity.test_continuous import batch, loss_of, small_net

STEPS, LR, DROPS = 60, 0.1, (0.5, 0.75)


@pytest.mark.filterwarnings("ignore::paretorch.errors.UndecidedWarning")
@pytest.mark.parametrize("init", [-0.3, 0.05])
def test_weights_and_decisions_follow_the_printed_algorithm(init: float) -> None:
    x, plain = batch(), small_net()
    model = copy.deepcopy(plain)
    method = ContinuousSparsification.as_printed(init, penalty=1e-3, lr=LR, drops=DROPS)
    plan = compress(model, method, steps=STEPS)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=LR, momentum=0.9)
    layers = {"0.weight": model[0], "3.weight": model[3]}
    start = torch.sigmoid(torch.tensor(init))
    for name, layer in layers.items():
        torch.testing.assert_close(layer.weight.detach(), start * plain.get_parameter(name).detach())
    reference = algorithm_1(
        plain, tuple(layers), loss_of, x, s_init=init, penalty=1e-3, final=200.0, steps=STEPS, lr=LR, drops=DROPS
    )
    for t, (theta, s) in enumerate(reference):
        optimizer.param_groups[0]["lr"] = LR * 0.1 ** sum(t >= drop * STEPS for drop in DROPS)
        loss_of(model(x)).backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
        for name, layer in layers.items():
            torch.testing.assert_close(layer.paretorch_weight.latent, theta[name], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(layer.paretorch_weight.sparsity.s, s[name], rtol=1e-4, atol=1e-5)
    assert all(float((one.detach() - init).abs().max()) > 1e-2 for one in s.values()), "the decisions must have moved"
    plan.harden()
    for name, layer in layers.items():
        torch.testing.assert_close(layer.weight.detach(), theta[name].detach() * (s[name] >= 0), rtol=1e-4, atol=1e-5)


def test_other_options_go_through() -> None:
    method = ContinuousSparsification.as_printed(-0.2, final_temperature=50.0, exclude="head", momentum=0.0)
    assert (method.final_temperature, method.exclude, method.momentum) == (50.0, "head", 0.0)
    assert (method.penalty, method.target, method.rescale, method.anneal) == (1e-8, None, False, 1.0)


def test_drops_survive_a_resume() -> None:
    def run(stop: int | None) -> list[torch.Tensor]:
        method = ContinuousSparsification.as_printed(-0.1, drops=(0.5,))
        model = small_net()
        plan = compress(model, method, steps=20)
        optimizer = torch.optim.SGD(plan.param_groups(), lr=0.1)
        for t in range(20):
            if t == stop:
                states = [copy.deepcopy(one.state_dict()) for one in (model, plan, optimizer)]
                model = small_net()
                plan = compress(model, method, steps=20)
                optimizer = torch.optim.SGD(plan.param_groups(), lr=0.1)
                for one, state in zip((model, plan, optimizer), states, strict=True):
                    one.load_state_dict(state)
            loss_of(model(batch())).backward()
            optimizer.step()
            plan.step()
            optimizer.zero_grad()
        return [layer.paretorch_weight.sparsity.s.detach() for layer in (model[0], model[3])]

    whole = run(None)
    for stop in (9, 10, 15):
        assert all(torch.equal(one, other) for one, other in zip(whole, run(stop), strict=True))


@pytest.mark.parametrize("drops", [(1.5,), (-0.1,), 0.5, ("a",)])
def test_drops_that_are_no_shares_are_refused(drops: object) -> None:
    with pytest.raises(ConfigError, match="drops"):
        compress(small_net(), ContinuousSparsification(drops=drops), steps=10)  # type: ignore[arg-type]


@pytest.mark.parametrize("init", [-0.3, 0.4])
def test_without_rescaling_a_grid_stays_as_it_is(init: float) -> None:
    from paretorch import SMOL

    model = small_net()
    plain = copy.deepcopy(model)
    plan = compress(model, ContinuousSparsification(init=init, rescale=False), SMOL(penalty=1e-4), steps=10)
    model.eval()
    plan.refresh()
    expected = torch.sigmoid(torch.tensor(init)) * plain[3].weight.detach()
    torch.testing.assert_close(model[3].weight.detach(), expected)
