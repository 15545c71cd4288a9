"""DCGAN (Radford et al., 2016) for 32×32 images, chapter 5, and its losses; with the hinge loss it is the GGAN of chapter 6.

The generator has four transposed convolutions with batch norm and ReLU, the discriminator four strided convolutions with
batch norm and LeakyReLU. As in the paper, weights are drawn from N(0, 0.02²), and the last layer of both networks and the
first of the discriminator have no batch norm.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from paretorch.zoo.networks import Network


class Generator(Network):
    """Noise [N, latent] → images [N, channels, 32, 32] in [−1, 1]."""

    leave_out: ClassVar[Mapping[str, tuple[str, ...]]] = {"sparsity": (), "precision": (), "sharing": ("*",)}

    def __init__(self, latent: int = 100, width: int = 64, channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = latent
        for outputs, stride, padding in ((4 * width, 1, 0), (2 * width, 2, 1), (width, 2, 1)):
            layers.append(nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False))
            layers += [nn.BatchNorm2d(outputs), nn.ReLU()]
            inputs = outputs
        layers += [nn.ConvTranspose2d(inputs, channels, 4, 2, 1, bias=False), nn.Tanh()]
        self.layers = nn.Sequential(*layers)
        _initialise(self)

    def forward(self, noise: Tensor) -> Tensor:
        return self.layers(noise[:, :, None, None])  # type: ignore[no-any-return]


class Discriminator(Network):
    """Images [N, channels, 32, 32] → logits [N], positive for real ones."""

    leave_out: ClassVar[Mapping[str, tuple[str, ...]]] = {"sparsity": (), "precision": (), "sharing": ("*",)}

    def __init__(self, width: int = 64, channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(channels, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
        for inputs in (width, 2 * width):
            layers.append(nn.Conv2d(inputs, 2 * inputs, 4, 2, 1, bias=False))
            layers += [nn.BatchNorm2d(2 * inputs), nn.LeakyReLU(0.2)]
        layers.append(nn.Conv2d(4 * width, 1, 4, 1, 0, bias=False))
        self.layers = nn.Sequential(*layers)
        _initialise(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images).flatten()  # type: ignore[no-any-return]


def bce_discriminator(real: Tensor, fake: Tensor) -> Tensor:
    """−E log σ(D(x)) − E log(1 − σ(D(G(z)))), from the logits."""
    return F.softplus(-real).mean() + F.softplus(fake).mean()


def bce_generator(fake: Tensor) -> Tensor:
    """−E log σ(D(G(z))), the form that does not saturate (Goodfellow et al., 2014)."""
    return F.softplus(-fake).mean()


def hinge_discriminator(real: Tensor, fake: Tensor) -> Tensor:
    """E max(0, 1 − D(x)) + E max(0, 1 + D(G(z))) (Lim & Ye, 2017)."""
    return F.relu(1 - real).mean() + F.relu(1 + fake).mean()


def hinge_generator(fake: Tensor) -> Tensor:
    """−E D(G(z)) (Lim & Ye, 2017)."""
    return -fake.mean()


def _initialise(network: nn.Module) -> None:
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(layer.weight, 0.0, 0.02)
        elif isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.weight, 1.0, 0.02)
