"""Your model, your loop: a small CNN on the handwritten digits, compressed into a file of 4 kB.

python examples/own_loop.py
"""

import torch
from torch import Tensor, nn

import paretorch as pt
from paretorch import zoo

EPOCHS, FINETUNE, BATCH = 10, 4, 64


def build() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


def main() -> None:
    torch.manual_seed(0)
    digits = zoo.data.load("digits")
    (train_x, train_y), (test_x, test_y) = ((x.float() / 255 - 0.3, y) for x, y in (digits.train, digits.test))
    model, steps = build(), len(train_y) // BATCH

    zeros = pt.ContinuousSparsification(lr=1.0)  # a run this short needs faster decisions than the default of 0.1
    plan = pt.compress(model, zeros, pt.SMOL(group="channel", scale="auto"), steps=EPOCHS * steps, budget=4_000)
    optimizer = torch.optim.SGD(plan.param_groups(weight_decay=5e-4), lr=0.05, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, (EPOCHS + FINETUNE) * steps)
    for epoch in range(EPOCHS + FINETUNE):
        if epoch == EPOCHS:
            plan.harden(optimizer)  # zeros and bits are fixed from here on
        model.train()
        for rows in torch.randperm(len(train_y)).split(BATCH)[:steps]:
            nn.functional.cross_entropy(model(train_x[rows]), train_y[rows]).backward()
            optimizer.step()
            plan.step()
            optimizer.zero_grad()
            schedule.step()
        print(f"epoch {epoch + 1:2d}: {accuracy(model, test_x, test_y):.2%} {plan.metrics()}")

    small = plan.finalize()
    pt.save(small, "digits.pare")
    again = pt.load("digits.pare", into=build())
    print(pt.report(again, accuracy=accuracy(again, test_x, test_y)))


if __name__ == "__main__":
    main()
