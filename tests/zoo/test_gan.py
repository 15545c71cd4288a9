"""The GAN networks and losses."""

import torch
from torch.nn import functional as F

from paretorch.zoo import build
from paretorch.zoo.networks.dcgan import bce_discriminator, bce_generator, hinge_discriminator, hinge_generator


def test_images_lie_in_range() -> None:
    images = build("dcgan-generator", width=4)(10 * torch.randn(4, 100))
    assert images.abs().max() <= 1


def test_binary_cross_entropy() -> None:
    real, fake = torch.randn(9), torch.randn(9)
    expected = F.binary_cross_entropy_with_logits(real, torch.ones(9))
    expected += F.binary_cross_entropy_with_logits(fake, torch.zeros(9))
    torch.testing.assert_close(bce_discriminator(real, fake), expected)
    torch.testing.assert_close(bce_generator(fake), F.binary_cross_entropy_with_logits(fake, torch.ones(9)))


def test_hinge() -> None:
    real, fake = torch.tensor([2.0, 0.5]), torch.tensor([-3.0, 1.0])
    assert hinge_discriminator(real, fake).item() == (0 + 0.5) / 2 + (0 + 2.0) / 2
    assert hinge_generator(fake).item() == 1.0
