"""Small networks, each with another way of tying channels together."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Residual(nn.Module):
    """A stem, a block with a projection, a block without, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.a, self.norm_a = nn.Conv2d(8, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.b, self.norm_b = nn.Conv2d(12, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.c, self.project = nn.Conv2d(8, 10, 3, stride=2, padding=1), nn.Conv2d(8, 10, 1, stride=2)
        self.head = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(x + self.norm_b(self.b(torch.relu(self.norm_a(self.a(x))))))
        x = torch.relu(self.c(x)) + self.project(x)
        return self.head(x.mean((2, 3)))


class InPlace(Residual):
    """The same, with activations and sums that change what they are given."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)), inplace=True)
        out = self.norm_b(self.b(F.relu6(self.norm_a(self.a(x)), inplace=True)))
        out += x
        x = F.relu(out, inplace=True)
        x = self.c(x).add_(self.project(x))
        return self.head(x.mean((2, 3)))


class Seen(nn.Module):
    """What is changed in place is seen under another name, too: no channel of `one` would be zero."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 5, 1), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        x.transpose(1, 2).add_(1.0)
        return self.head(F.relu_(self.two(x)).mean((2, 3)))


class Dense(nn.Module):
    """Concatenation, and one norm over both parts."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 5, 3, padding=1)
        self.norm, self.three = nn.BatchNorm2d(14), nn.Conv2d(14, 7, 1)
        self.head = nn.Linear(7 * 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        one = F.relu(self.one(x))
        both = torch.cat([x, one, F.gelu(self.two(one))], 1)
        return self.head(F.max_pool2d(self.three(F.relu(self.norm(both))), 2).flatten(1))


class Depthwise(nn.Module):
    """Expand, depthwise, project, with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 1)
        self.expand, self.norm = nn.Conv2d(6, 12, 1, bias=False), nn.BatchNorm2d(12)
        self.depth, self.again = nn.Conv2d(12, 12, 3, padding=1, groups=12), nn.Conv2d(12, 24, 3, groups=12, padding=1)
        self.project = nn.Conv2d(24, 6, 1)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.stem(x))
        x = x + self.project(F.hardswish(self.again(F.relu6(self.depth(F.relu6(self.norm(self.expand(x))))))))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Shuffled(nn.Module):
    """Grouped convolutions with a channel shuffle between, and a grouped transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 1)
        self.one, self.norm = nn.Conv2d(12, 24, 1, groups=3, bias=False), nn.BatchNorm2d(24)
        self.two = nn.Conv2d(24, 12, 3, groups=3, padding=1)
        self.up = nn.ConvTranspose2d(12, 8, 2, stride=2, groups=2)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.one(F.relu(self.stem(x)))))
        n, c, h, w = x.shape
        x = x.view(n, 3, c // 3, h, w).transpose(1, 2).reshape(n, c, h, w)
        return self.head(F.relu(self.up(F.relu(self.two(x)))).mean((2, 3)))


class Excited(nn.Module):
    """Squeeze and excitation: the gate of a dropped channel is not zero, its product is."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.squeeze, self.excite = nn.Linear(8, 5), nn.Linear(5, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.norm(self.conv(x)))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3))))))
        return self.head((x * gate[:, :, None, None]).amax((2, 3)))


class Padded(nn.Module):
    """A shortcut that is padded with zeros: the channels beside it stay."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner, self.out = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 9, 1), nn.Conv2d(9, 10, 1)
        self.head = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.pad(x, (0, 0, 0, 0, 2, 2)) + self.out(F.relu(self.inner(x)))
        return self.head(x.mean((2, 3)))


class Written(nn.Module):
    """A width is written into the forward pass, so the channels before it must stay."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner = nn.Conv2d(3, 6, 1), nn.Conv2d(3, 9, 1)
        self.head = nn.Linear(9, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = x.view(len(x), 2, 3, 4, 4).amax(1)
        return self.head(F.relu(self.inner(x)).mean((2, 3)))


class Repeated(nn.Module):
    """One layer used three times, and one activation that does not keep zero."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.loop, self.soft, self.head = (
            nn.Linear(48, 9),
            nn.Linear(9, 9),
            nn.Linear(9, 7),
            nn.Linear(7, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.into(x.flatten(1)))
        for _ in range(3):
            x = torch.tanh(self.loop(x))
        return self.head(F.softplus(self.soft(x)))


class Normed(nn.Module):
    """Layer norm sees every channel; the hidden units of the two linear layers behind it may go."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm = nn.Linear(16, 10), nn.LayerNorm(10)
        self.up, self.down, self.head = nn.Linear(10, 20), nn.Linear(20, 10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x.flatten(2))
        return self.head((x + self.down(F.gelu(self.up(self.norm(x))))).mean(1))


# Name -> network, and the layers whose outputs can go.
NETS: dict[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "residual": (Residual, {"stem", "a", "b", "c", "project"}),
    "in place": (InPlace, {"stem", "a", "b", "c", "project"}),
    "seen": (Seen, {"two"}),
    "dense": (Dense, {"one", "two", "three"}),
    "depthwise": (Depthwise, {"stem", "expand", "depth", "again", "project"}),
    "shuffled": (Shuffled, {"stem", "one", "two", "up"}),
    "excited": (Excited, {"conv", "squeeze", "excite"}),
    "padded": (Padded, {"stem", "inner", "out"}),
    "written": (Written, {"inner"}),
    "repeated": (Repeated, {"into", "loop"}),
    "normed": (Normed, {"up"}),
}
