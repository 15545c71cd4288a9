"""Half of the multiply-adds: channels that are really gone, a smaller ONNX file, and the time that it takes.

pip install 'paretorch[slim,export]'
python examples/fewer_channels.py
"""

import torch
from torch import nn

import paretorch as pt
from paretorch import zoo

EPOCHS, BATCH = 6, 64


def main() -> None:
    torch.manual_seed(0)
    digits = zoo.data.load("digits")
    (train_x, train_y), (test_x, test_y) = ((x.float() / 255 - 0.3, y) for x, y in (digits.train, digits.test))
    model, dense, steps = zoo.build("digits-cnn"), zoo.build("digits-cnn"), len(train_y) // BATCH

    half = pt.ContinuousSparsification(target=0.5, group="channel", count="macs")
    plan = pt.compress(model, half, steps=EPOCHS * steps, example=test_x[:2])
    optimizer = pt.AvaGrad(plan.param_groups(weight_decay=5e-4), lr=1.0)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(train_y)).split(BATCH)[:steps]:
            nn.functional.cross_entropy(model(train_x[rows]), train_y[rows]).backward()
            optimizer.step()
            plan.step()
            optimizer.zero_grad()

    small = plan.finalize().eval()
    with torch.no_grad():
        right = float((small(test_x).argmax(1) == test_y).float().mean())
    pt.export_onnx(small, test_x[:8], "digits.onnx")
    print(pt.report(small, example=test_x[:64], baseline=dense, accuracy=right))


if __name__ == "__main__":
    main()
