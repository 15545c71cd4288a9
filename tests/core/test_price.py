"""The price that the plan tells, and the gradient that it adds in closed form, against autograd of the formula."""

import pytest
import torch
from torch import Tensor, nn

from paretorch import SMOL, ContinuousSparsification, Plan, compress
from paretorch.core.method import Method
from tests.core.tiny import batch, small_net
from tests.methods.sparsity.algorithm_1 import GATES


def scatter(plan: Plan) -> None:
    generator = torch.Generator().manual_seed(0)
    for term in plan._terms:
        for decision in term.decisions():
            decision.data.copy_(torch.randn(decision.shape, generator=generator))


class Recorder(torch.optim.Optimizer):
    """Keeps the gradients that it is given, and changes nothing."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})
        self.seen: list[Tensor] = []

    def step(self, closure: None = None) -> None:
        self.seen = [p.grad.clone() for p in self.param_groups[0]["params"]]


def literal_price(plan: Plan, keep: float, bits: float, gate: str, decisions: dict[int, Tensor]) -> Tensor:
    """λ_keep Σ m + λ_bits Σ m·p, with m = b̂(β, s) and p = 1 + log₂(1 + e⁻ˢ), or 1 where there is no such decision."""
    price = torch.zeros(())
    for site, chain in zip(plan._sites, plan._chains, strict=True):
        m, p = torch.ones(()), None
        for r in chain.relaxations():
            spread = r.grouping.expand(decisions[id(r.decision)].view(r.grouping.grid)).expand(site.weight.shape)
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
    recorders: list[Recorder] = []

    def record(parameters: list[nn.Parameter]) -> Recorder:
        recorders.append(Recorder(parameters))
        return recorders[-1]

    methods: list[Method] = []
    if by_mask is not None:
        methods.append(ContinuousSparsification(group=by_mask, penalty=0.02, gate=gate, anneal=1.0, optimizer=record))
    if by_bits is not None:
        methods.append(SMOL(group=by_bits, penalty=0.03, optimizer=record, exclude="5"))
    plan = compress(small_net(), *methods, steps=10)
    for _ in range(3):
        plan.step()  # so that the temperature is not 1
    scatter(plan)
    leaves = {id(d): d.detach().clone().requires_grad_() for term in plan._terms for d in term.decisions()}
    price = literal_price(plan, 0.02, 0.03, gate, leaves)
    torch.testing.assert_close(plan.penalty(), price.detach(), rtol=1e-5, atol=1e-5)
    expected = torch.autograd.grad(price, list(leaves.values()))
    plan.step()
    seen = [gradient for recorder in recorders for gradient in recorder.seen]
    assert len(seen) == len(expected)
    for got, want in zip(seen, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def test_the_price_comes_on_top_of_the_loss() -> None:
    recorders: list[Recorder] = []

    def record(parameters: list[nn.Parameter]) -> Recorder:
        recorders.append(Recorder(parameters))
        return recorders[-1]

    model = small_net()
    plan = compress(model, ContinuousSparsification(penalty=0.5, optimizer=record), steps=10)
    model(batch()).square().sum().backward()
    torch.optim.SGD(plan.param_groups(), lr=0.1).step()
    by_loss = [plan._engine.gradient_of(d).clone() for d in plan._terms[0].decisions()]
    plan.step()
    for got, loss in zip(recorders[0].seen, by_loss, strict=True):
        torch.testing.assert_close(got, loss + 0.5 * 0.25)  # σ′(0) = 1/4
    assert all(d.grad is None for d in plan._terms[0].decisions())
