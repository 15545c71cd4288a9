"""Algorithm 5 of chapter 5, literally: autograd on the loss plus the price, Adam for s, SGD for w, then straight through."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call

Noise = Callable[[str, int, torch.Size], Tensor]


def q(w: Tensor, p: Tensor) -> Tensor:
    """The nearest odd multiple of 2^(1−p) within ±(2 − 2^(1−p)); ties go up; p = 0 is 0."""
    unit = 2.0 ** (1.0 - p)
    nearest = 2 * unit * torch.floor(w / (2 * unit)) + unit
    return torch.where(p > 0, torch.maximum(torch.minimum(nearest, 2 - unit), unit - 2), torch.zeros(()))


class Smol:
    """Searching by `search`, then `round`, then `fine_tune`; w, s and p are the algorithm's."""

    def __init__(
        self,
        f: nn.Module,
        shapes: dict[str, tuple[int, ...]],
        p_init: float,
        momentum: float = 0.9,
        printed: bool = False,
    ) -> None:
        """printed: p is rounded to the nearest, not down, and nothing is clipped after that."""
        self.f, self.printed = f, printed
        self.w = {name: parameter.detach().clone().requires_grad_() for name, parameter in f.named_parameters()}
        start = -math.log(2 ** (p_init - 1) - 1)
        self.s = {name: torch.full(shape, start, requires_grad=True) for name, shape in shapes.items()}
        self.p: dict[str, Tensor] = {}
        self.train_w = torch.optim.SGD(list(self.w.values()), lr=0.05, momentum=momentum)
        self.train_s = torch.optim.Adam(list(self.s.values()), lr=1e-3)

    def search(
        self, loss: Callable[[Tensor], Tensor], x: Tensor, noise: Noise, penalty: float, steps: int
    ) -> Iterator[None]:
        for t in range(steps):
            weights, price = dict(self.w), torch.zeros(())
            for name, s in self.s.items():
                w = self.w[name]
                weights[name] = w + torch.sigmoid(s) * noise(name, t, w.shape)
                price = price + penalty * torch.log2(1 + torch.exp(-s)).expand(w.shape).sum()
            (loss(functional_call(self.f, weights, x)) + price).backward()
            self._update(self.train_w, self.train_s)
            self._clip({name: torch.sigmoid(s) for name, s in self.s.items()})
            yield

    def round(self, zero_precision: bool) -> None:
        for name, s in self.s.items():
            w = self.w[name].detach()
            real = 1 + torch.log2(1 + torch.exp(-s.detach()))
            # fp32: 3 may be 2.9999998
            p = (torch.floor(real + 0.5) if self.printed else torch.floor(real + 1e-4)).expand(w.shape)
            if zero_precision:
                p = torch.where(w.abs() <= (w - q(w, p)).abs(), 0.0, p)
            self.p[name] = p
        if not self.printed:
            self._clip({name: 2.0 ** (1 - p) for name, p in self.p.items()})

    def fine_tune(self, loss: Callable[[Tensor], Tensor], x: Tensor, steps: int) -> Iterator[None]:
        for _ in range(steps):
            weights = {
                name: q(w.detach(), self.p[name]).requires_grad_() if name in self.p else w
                for name, w in self.w.items()
            }
            loss(functional_call(self.f, weights, x)).backward()
            for name, p in self.p.items():
                gradient = weights[name].grad
                assert gradient is not None
                self.w[name].grad = gradient * (p > 0)
            self._update(self.train_w)
            if not self.printed:
                self._clip({name: 2.0 ** (1 - p) for name, p in self.p.items()})
            yield

    def _update(self, *optimizers: torch.optim.Optimizer) -> None:
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def _clip(self, half: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, h in half.items():
                bound = (2 - h).expand(self.w[name].shape)
                self.w[name].copy_(torch.maximum(torch.minimum(self.w[name], bound), -bound))
