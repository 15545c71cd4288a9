"""The loop of ten lines that trainers of others are compared with, and the network that both train."""

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import paretorch as pt

STEPS, SEARCH, CLIP = 6, 4, 0.05


class Same(Dataset[dict[str, Tensor]]):
    """One example many times, another one on another rank: the order in which a loop takes them does not matter."""

    def __init__(self, rank: int = 0) -> None:
        self._rank = rank

    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": torch.linspace(-1, 1, 8).roll(self._rank), "labels": torch.tensor(2 + self._rank)}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.body(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def compressed(model: nn.Module) -> tuple[pt.Plan, torch.optim.Optimizer]:
    methods = (pt.ContinuousSparsification(target=0.5), pt.SMOL(target_bits=2.0))
    plan = pt.compress(model, *methods, steps=SEARCH)
    return plan, torch.optim.SGD(plan.param_groups(weight_decay=1e-3), lr=0.5, momentum=0.9)


def everything(model: nn.Module) -> torch.optim.Optimizer:
    """As people make it: of all parameters, the plan's own among them, which have no gradients."""
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=1e-3)


def by_hand(ranks: int = 1) -> dict[str, Tensor]:
    """What the ten lines come to, with the batches of so many ranks as one."""
    model = Net()
    plan, optimizer = compressed(model)
    batch = torch.utils.data.default_collate([Same(rank)[0] for rank in range(ranks) for _ in range(2)])
    for step in range(STEPS):
        model(**batch)["loss"].backward()
        nn.utils.clip_grad_norm_([one for group in optimizer.param_groups for one in group["params"]], CLIP)
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
        if step + 1 == SEARCH:
            plan.harden(optimizer)
    return model.state_dict()


def check_alike(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=name)


def numbers(value: Tensor) -> Tensor:
    """What a plan keeps as the bits of its numbers, as numbers: ranks add in another order, which the last bits show."""
    return value.view(torch.float32) if value.dtype == torch.int32 and value.dim() else value
