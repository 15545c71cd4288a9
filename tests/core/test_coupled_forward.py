"""Forward passes as people write them: channels go where they can, and stay where they cannot."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import paretorch as pt
from paretorch.core.channels.couple import couple

X = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(1))
Between = Callable[[Tensor], Tensor]


class Net(nn.Module):
    """Two convolutions, with something between them, and a head."""

    def __init__(self, between: Between) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(12, 10, 1), nn.Linear(10, 4)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(F.relu(self.two(self.between(self.one(x)))).mean((2, 3)))
        return logits


class Halves(nn.Module):
    """Either half of the channels goes its own way."""

    def __init__(self, first: nn.Module) -> None:
        super().__init__()
        self.one, self.first, self.second = nn.Conv2d(3, 12, 1), first, nn.Conv2d(6, 6, 1)
        self.two, self.head = nn.Conv2d(12, 10, 1), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        a, b = F.relu(self.one(x)).chunk(2, 1)
        both = torch.cat([self.first(a), self.second(b)], 1)
        logits: Tensor = self.head(F.relu(self.two(F.relu(both))).mean((2, 3)))
        return logits


class Viewed(nn.Module):
    """Flattened by `view`."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Conv2d(3, 12, 1), nn.Linear(12 * 36, 10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.one(x))
        logits: Tensor = self.head(F.relu(self.two(x.view(x.size(0), -1))))
        return logits


class Drawn(Net):
    """Adds noise to what it gives, in eval mode too."""

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return logits + torch.randn_like(logits)


def _shuffled(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    return F.relu(x).view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def _asserted(x: Tensor) -> Tensor:
    assert x.shape[1] == 12, "twelve channels are expected"
    return F.relu(x)


def _looked_up(x: Tensor) -> Tensor:
    return F.relu(x) * {12: 1.0}[x.shape[1]]


def _autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = x * 2
    return F.relu(x.float())


def _noisy(x: Tensor) -> Tensor:
    return x + 0.0 * torch.empty_like(x).normal_()


BOTH = {"one", "two"}
NETS: dict[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "halves": (lambda: Halves(nn.Conv2d(6, 6, 1)), {"first", "second", "two"}),
    "halves, one fixed": (lambda: Halves(nn.GroupNorm(1, 6)), {"second", "two"}),
    "shuffled": (lambda: Net(_shuffled), {"two"}),
    "rolled by half": (lambda: Net(lambda x: torch.roll(F.relu(x), x.shape[1] // 2, 1)), {"two"}),
    "asserted": (lambda: Net(_asserted), {"two"}),
    "looked up": (lambda: Net(_looked_up), {"two"}),
    "autocast": (lambda: Net(_autocast), {"two"}),
    "noisy": (lambda: Net(_noisy), {"two"}),
    "where": (lambda: Net(lambda x: torch.where(x > 0, x, 0.1 * x)), BOTH),
    "where not zero": (lambda: Net(lambda x: torch.where(x > 0, x, torch.exp(x))), {"two"}),
    "masked": (lambda: Net(lambda x: x.masked_fill(x < 0, 0.0)), BOTH),
    "not masked": (lambda: Net(lambda x: x * (~(x < 0)).to(x.dtype)), BOTH),
    "in half precision": (lambda: Net(lambda x: F.relu(x).bfloat16().float()), BOTH),
    "padded": (lambda: Net(lambda x: F.max_pool2d(F.pad(x, (1, 1, 1, 1), value=-torch.inf), 2)), {"two"}),
    "viewed": (Viewed, BOTH),
    "drawn": (lambda: Drawn(F.relu), BOTH),
}


@pytest.mark.parametrize("name", NETS)
def test_the_small_network_computes_what_the_masked_one_did(name: str) -> None:
    build, lose = NETS[name]
    torch.manual_seed(0)
    model = build()
    coupling = couple(model, X, {f"{n}.weight" for n, _ in model.named_modules() if n}, "this")
    assert {cut.module for cut in coupling.cuts if cut.side == "out"} == lose
    # Any choice, and not only one that takes equally many of everything.
    for seed in range(3):
        torch.manual_seed(seed)
        model = build()
        plan = pt.compress(model, pt.ContinuousSparsification(target=0.2, group="channel"), steps=6, example=X)
        optimizer = torch.optim.SGD(plan.param_groups(), lr=0.05)
        for _ in range(6):
            F.cross_entropy(model(X), torch.arange(4)).backward()
            optimizer.step()
            plan.step()
            optimizer.zero_grad()
        plan.harden(optimizer)
        model.eval()
        torch.manual_seed(0)
        expected = model(X).detach()
        small = plan.finalize()
        torch.manual_seed(0)
        assert torch.allclose(small(X), expected, atol=1e-4 * float(expected.abs().max()))
        assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in build().parameters())


def test_labels_survive_half_precision() -> None:
    """More channels than bfloat16 has whole numbers."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 700), nn.ReLU(), Cast(), nn.Linear(700, 3))
    assert couple(model, torch.randn(2, 8), {"0.weight", "3.weight"}, "this").count == 700


class Cast(nn.Module):
    """To bfloat16, and back."""

    def forward(self, x: Tensor) -> Tensor:
        return x.bfloat16().float()


def test_rounding_of_bfloat16_is_not_taken_for_a_difference() -> None:
    class Rounded(Net):
        """Its error depends on how many terms a sum has, as that of kernels does."""

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (1 + torch.finfo(x.dtype).eps * self.one.out_channels)

    model = Rounded(F.relu).bfloat16()
    assert couple(model, X.bfloat16(), {"one.weight", "two.weight"}, "this").count == 22


def test_an_output_may_be_empty() -> None:
    class Beside(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x), x[:0]  # type: ignore[return-value]

    assert couple(Beside(F.relu), X, {"one.weight", "two.weight"}, "this").count == 22
