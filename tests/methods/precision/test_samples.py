"""K samples of the noise a step, against Definition 5.5 written out; and what they leave alone."""

import contextlib
import copy

import pytest
import torch
from torch import nn

from paretorch import SMOL, SMOLActivations, compress
from paretorch.errors import ConfigError
from paretorch.methods.precision.noisy import noise_samples
from tests.contract.cases import MODELS, build, loss_of
from tests.decisions import Gradients, copies, decisions


def test_the_average_loss_over_k_samples() -> None:
    """1/K Σ L(f(w + σ(s) ε)), with the ε that the network was seen to use."""
    network, x, count = build("linear"), MODELS["linear"].batch(8), 3
    plain = copy.deepcopy(network)
    gradients = Gradients()
    plan = compress(network, SMOL(penalty=0.0, init_bits=3.0, scale="fit", optimizer=gradients), steps=10)
    plan.step()  # not the first step, so that a sample is no step that has been
    w = [layer.paretorch_weight.latent.detach().clone().requires_grad_() for layer in (network[0], network[2])]
    s = [one.requires_grad_() for one in copies(decisions(network))]
    losses, seen = [], []
    for _ in noise_samples(network, count):
        with torch.no_grad():
            noise = [
                (layer.weight - one) / torch.sigmoid(t)
                for layer, one, t in zip((network[0], network[2]), w, s, strict=True)
            ]
        seen.append(noise[0])
        noisy = {f"{i}.weight": one + torch.sigmoid(t) * e for i, one, t, e in zip((0, 2), w, s, noise, strict=True)}
        losses.append(loss_of(torch.func.functional_call(plain, noisy, x)))
        (loss_of(network(x)) / count).backward()
    torch.stack(losses).mean().backward()
    for layer, one in zip((network[0], network[2]), w, strict=True):
        torch.testing.assert_close(layer.weight.grad, one.grad, rtol=1e-4, atol=1e-6)
    plan.step()
    torch.testing.assert_close(gradients.found, [one.grad for one in s], rtol=1e-4, atol=1e-6)
    assert all(float((a - b).abs().mean()) > 0.3 for a, b in [(seen[0], seen[1]), (seen[1], seen[2])])


def test_one_sample_is_the_ordinary_step_and_the_counter_comes_back() -> None:
    network, x = build("linear"), MODELS["linear"].batch(4)
    plan = compress(network, SMOL(target_bits=3.0), steps=10)
    plan.step()
    ordinary = network(x).detach()
    assert [k for k in noise_samples(network, 1) if torch.equal(network(x), ordinary)] == [0]
    for _ in noise_samples(network, 5):
        break
    with contextlib.suppress(RuntimeError):
        for k in noise_samples(network, 5):
            if k == 2:
                raise RuntimeError
    assert torch.equal(network(x), ordinary)
    assert plan.metrics()["step"] == 1


def test_activations_are_sampled_too_and_rounded_networks_have_no_noise() -> None:
    torch.manual_seed(0)
    network, x = nn.Sequential(nn.Linear(4, 6), nn.ReLU()), torch.randn(5, 4)
    plan = compress(network, SMOLActivations(target_bits=3.0, init_bits=4.0), steps=10, example=x)
    first, second = [network(x).detach() for _ in noise_samples(network, 2)]
    assert not torch.equal(first, second)
    plan.harden()
    first, second = [network(x).detach() for _ in noise_samples(network, 2)]
    assert torch.equal(first, second)


@pytest.mark.parametrize("count", [0, -1, 1.5, True, 64, "2"])
def test_a_count_that_cannot_be_meant(count: object) -> None:
    network = build("linear")
    compress(network, SMOL(target_bits=4.0), steps=4)
    with pytest.raises(ConfigError, match="count="):
        noise_samples(network, count)  # type: ignore[arg-type]


def test_what_has_no_plan_or_steps_too_early() -> None:
    with pytest.raises(ConfigError, match="no plan"):
        noise_samples(build("linear"), 2)
    network = build("linear")
    plan = compress(network, SMOL(target_bits=4.0), steps=4)
    with pytest.raises(ConfigError, match="after the loop"):
        [plan.step() for _ in noise_samples(network, 2)]
