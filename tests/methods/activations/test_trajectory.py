"""The library trains as the text does: weights, α and precisions, step by step."""

import torch
from torch import nn

from paretorch import SMOLActivations, compress
from tests.methods.activations.smol_a import smol_a


def test_follows_the_text() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False))
    x, y = 2 * torch.randn(12, 5), torch.arange(12) % 3
    options = {"alpha": 1.5, "p_init": 4.5, "price": 0.001, "steps": 40, "tune": 5}
    expected = smol_a(model[0].weight.detach(), model[2].weight.detach(), x, y, **options)

    method = SMOLActivations(penalty=0.001, init_bits=4.5, alpha=1.5, lr=0.05)
    plan = compress(model, method, steps=40, example=x)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.1)
    for step in range(45):
        if step == 40:
            plan.harden(optimizer)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    small = plan.finalize()
    assert torch.equal(small[1].bits, expected["p"].int())
    assert len(expected["p"].unique()) > 1  # the precisions have come apart
    torch.testing.assert_close(small[1].bounds[1], expected["alpha"][0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(small[0].weight, expected["w1"], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(small[2].weight, expected["w2"], rtol=1e-3, atol=1e-4)
