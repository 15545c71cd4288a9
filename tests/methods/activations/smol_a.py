"""SMOL-A, literally: section 5.4 and Algorithm 5 for a network of one hidden layer, with no code of the library."""

import torch
from torch import Tensor

from tests.contract.reference import noise


def smol_a(
    w1: Tensor, w2: Tensor, x: Tensor, y: Tensor, *, alpha: float, p_init: float, price: float, steps: int, tune: int
) -> dict[str, Tensor]:
    """Train w1, w2 and α by SGD and s by Adam for some steps, map s to bits, then tune the weights and α.

    relu(x w1ᵀ) is clipped to [0, α]; its name, from which the noise comes, is "1".
    """
    w1, w2 = w1.clone().requires_grad_(), w2.clone().requires_grad_()
    a = torch.tensor([alpha], requires_grad=True)
    s = torch.full((len(w1),), -float(torch.log(torch.tensor(2.0 ** (p_init - 1) - 1)))).requires_grad_()
    sgd = torch.optim.SGD([{"params": [w1, w2]}, {"params": [a], "weight_decay": 5e-4}], lr=0.1)
    adam = torch.optim.Adam([s], lr=0.05)
    for t in range(steps):
        u = torch.minimum((x @ w1.T).clamp_min(0), a)
        epsilon = noise(0, "1", t, u.shape)
        output = (u + a / 2 * torch.sigmoid(s) * epsilon) @ w2.T
        loss = torch.nn.functional.cross_entropy(output, y) + price * torch.log2(1 + torch.exp(-s)).sum()
        sgd.zero_grad()
        adam.zero_grad()
        loss.backward()
        sgd.step()
        adam.step()
    p = 1 + torch.floor(torch.log2(1 + torch.exp(-s.detach())))
    for _ in range(tune):
        u = torch.minimum((x @ w1.T).clamp_min(0), a)
        unit = a.detach() / (2**p - 1)
        q = u + (torch.round(u.detach() / unit) * unit - u.detach())
        sgd.zero_grad()
        torch.nn.functional.cross_entropy(q @ w2.T, y).backward()
        sgd.step()
    return {"w1": w1.detach(), "w2": w2.detach(), "alpha": a.detach(), "p": p}
