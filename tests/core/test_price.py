"""The price that the plan tells, and the gradient that it adds in closed form, against autograd of the formula."""

import pytest
import torch
from torch import Tensor

from paretorch import SMOL, ContinuousSparsification, Plan, compress
from paretorch.core.method import Method
from tests.core.tiny import batch, small_net
from tests.decisions import Gradients, decisions, relaxed
from tests.methods.sparsity.algorithm_1 import GATES


def scatter(plan: Plan) -> None:
    generator = torch.Generator().manual_seed(0)
    for decision in decisions(plan.model):
        decision.data.copy_(torch.randn(decision.shape, generator=generator))


def literal_price(plan: Plan, keep: float, bits: float, gate: str, values: dict[int, Tensor]) -> Tensor:
    """λ_keep Σ m + λ_bits Σ m·p, with m = b̂(β, s) and p = 1 + log₂(1 + e⁻ˢ), or 1 where there is no such decision."""
    price = torch.zeros(())
    for chain in relaxed(plan.model).values():
        m, p = torch.ones(()), None
        for r in chain.relaxations():
            spread = r.grouping.expand(values[id(r.decision)].view(r.grouping.grid)).expand(chain.latent.shape)
            if r.kind == "sparsity":
                m = GATES[gate](spread, plan.metrics()["temperature"])
                price = price + keep * m.sum()
            else:
                p = 1 + torch.log2(1 + torch.exp(-spread))
        if p is not None:
            price = price + bits * (m * p).sum()
    return price


PRICED = {
    "sparsity": (("weight", None), "sigmoid"),
    "sparsity-channel": (("channel", None), "erf"),
    "sparsity-block": (((2, 1), None), "arctan"),
    "precision": ((None, "weight"), "sigmoid"),
    "precision-layer": ((None, "layer"), "sigmoid"),
    "precision-network": ((None, "network"), "sigmoid"),
    "both": (("weight", "weight"), "algebraic"),
    "both-mixed": (("channel", "layer"), "sigmoid"),
    "both-blocks": (((2, 2), (4, 1)), "erf"),
    "both-network": (("weight", "network"), "arctan"),
}


@pytest.mark.parametrize("case", list(PRICED))
def test_the_price_and_its_gradient(case: str) -> None:
    (by_mask, by_bits), gate = PRICED[case]
    given = {kind: Gradients() for kind in ("sparsity", "precision")}
    methods: list[Method] = []
    if by_mask is not None:
        options = {"group": by_mask, "gate": gate, "optimizer": given["sparsity"]}
        methods.append(ContinuousSparsification(penalty=0.02, anneal=1.0, **options))
    if by_bits is not None:
        methods.append(SMOL(group=by_bits, penalty=0.03, optimizer=given["precision"], exclude="5"))
    plan = compress(small_net(), *methods, steps=10)
    for _ in range(3):
        plan.step()  # so that the temperature is not 1
    scatter(plan)
    ordered = [one for kind in given for one in decisions(plan.model, kind)]
    leaves = {id(one): one.detach().clone().requires_grad_() for one in ordered}
    price = literal_price(plan, 0.02, 0.03, gate, leaves)
    torch.testing.assert_close(plan.penalty(), price.detach(), rtol=1e-5, atol=1e-5)
    expected = torch.autograd.grad(price, list(leaves.values()))
    plan.step()
    seen = [gradient for method in methods for gradient in given[method.kind].found]
    assert len(seen) == len(expected)
    for got, want in zip(seen, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def test_the_price_comes_on_top_of_the_loss() -> None:
    found = []
    for penalty in (0.0, 0.5):
        model, gradients = small_net(), Gradients()
        plan = compress(
            model, ContinuousSparsification(start="uniform", penalty=penalty, anneal=1.0, optimizer=gradients), steps=10
        )
        model(batch()).square().sum().backward()
        torch.optim.SGD(plan.param_groups(), lr=0.1).step()
        plan.step()
        found.append(gradients.found)
        assert all(one.grad is None for one in decisions(model))
    for loss, both in zip(*found, strict=True):
        torch.testing.assert_close(both, loss + 0.5 * 0.25)  # σ′(0) = 1/4
