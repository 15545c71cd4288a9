"""`SMOL.as_printed` is Algorithm 5 to the letter."""

import copy

import torch
from torch import Tensor

from paretorch import SMOL, compress
from tests.methods.precision.algorithm_5 import Smol, q
from tests.methods.precision.test_smol import batch, loss_of, noise, one_step, small_net


def test_weights_and_decisions_follow_the_printed_algorithm() -> None:
    x, plain = batch(), small_net(spread=1.0)
    model = copy.deepcopy(plain)
    plan = compress(model, SMOL.as_printed(1e-3, init_bits=3.0), steps=40)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.05, momentum=0.9)
    layers = {"0.weight": model[0], "3.weight": model[3]}
    chains = {name: layer.paretorch_weight.precision for name, layer in layers.items()}
    reference = Smol(plain, {name: tuple(one.s.shape) for name, one in chains.items()}, p_init=3.0, printed=True)
    for _ in reference.search(loss_of, x, noise, penalty=1e-3, steps=40):
        one_step(plan, optimizer, x)
        for name, layer in layers.items():
            torch.testing.assert_close(layer.paretorch_weight.latent, reference.w[name], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(chains[name].s, reference.s[name], rtol=1e-4, atol=1e-5)
    plan.harden()
    reference.round(zero_precision=False)
    for _ in reference.fine_tune(loss_of, x, steps=30):
        one_step(plan, optimizer, x)
        for name, layer in layers.items():
            torch.testing.assert_close(layer.paretorch_weight.latent, reference.w[name], rtol=1e-4, atol=1e-5)
            expected = q(reference.w[name].detach(), reference.p[name])
            torch.testing.assert_close(layer.weight.detach(), expected, rtol=0, atol=1e-5)
    assert _outside(reference.w, reference.p), "some weights must have left their grid"


def _outside(w: dict[str, Tensor], p: dict[str, Tensor]) -> bool:
    return any(bool((w[name].abs() > 2 - 2.0 ** (1 - own)).any()) for name, own in p.items())


def test_the_experiments_of_the_thesis_round_down() -> None:
    method = SMOL.as_printed(7e-7, rounding="floor", group="layer", zero_precision=True)
    assert (method.rounding, method.group, method.zero_precision) == ("floor", "layer", True)
    assert (method.target_bits, method.scale, method.lr, method.init_bits) == (None, 0, 1e-3, 8.0)
