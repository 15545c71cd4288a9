"""The Fréchet distance between two sets of images, by the features of a network of the user's or by coarse pixels.

FID (Heusel et al., 2017) is this distance by the features of an Inception network, whose weights this library does not
bring. Distances by other features order generators of one study, and compare with nothing else.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paretorch.errors import ConfigError
from paretorch.support.eval_mode import run_example
from paretorch.zoo.data import Images

_COARSE = 8
_BATCH = 500


class Features:
    """Images in [−1, 1] → features [N, d].

    `path` is the artefact of a classifier of the same images: the features are what its last linear layer gets. Without
    one they are the pixels, averaged to 8×8 (d = 64 × channels).
    """

    def __init__(self, path: str, images: Images, device: torch.device) -> None:
        self._network: nn.Module | None = None
        self._seen: Tensor | None = None
        shape = (1, len(images.mean), 1, 1)
        self._mean = torch.tensor(images.mean, device=device).view(shape)
        self._std = torch.tensor(images.std, device=device).view(shape)
        if path:
            from paretorch import deploy

            self._network = deploy.load(path).to(device).eval()
            linear = [module for module in self._network.modules() if isinstance(module, nn.Linear)]
            if not linear:
                raise ConfigError(f"{path} has no linear layer to take features from; give a classifier's artefact.")
            linear[-1].register_forward_pre_hook(self._remember)
            try:
                run_example(self._network, torch.zeros(2, *images.test[0].shape[1:]))
            except ConfigError as error:
                raise ConfigError(f"{path} is no classifier of the images of {images.name}: {error}.") from error

    def __call__(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([self._of(part) for part in images.split(_BATCH)])

    def _of(self, images: Tensor) -> Tensor:
        if self._network is None:
            return F.adaptive_avg_pool2d(images, _COARSE).flatten(1)
        self._network(((images + 1) / 2 - self._mean) / self._std)
        assert self._seen is not None
        return self._seen

    def _remember(self, module: nn.Module, inputs: Any) -> None:
        self._seen = inputs[0].detach().flatten(1).float()


def distance(one: Tensor, other: Tensor) -> float:
    """|μ₁ − μ₂|² + tr(Σ₁ + Σ₂ − 2 (Σ₁Σ₂)^½) of two sets of features [N, d], in double precision on the CPU.

    The eigenvalues of Σ₁Σ₂ are those of the symmetric Σ₁^½ Σ₂ Σ₁^½, whose roots are summed.
    """
    (mean1, spread1), (mean2, spread2) = (_moments(features.double().cpu()) for features in (one, other))
    values, vectors = torch.linalg.eigh(spread1)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    cross = torch.linalg.eigvalsh(root @ spread2 @ root).clamp(min=0).sqrt().sum()
    return float((mean1 - mean2).square().sum() + spread1.trace() + spread2.trace() - 2 * cross)


def _moments(features: Tensor) -> tuple[Tensor, Tensor]:
    if len(features) < 2:
        raise ConfigError("A Fréchet distance needs at least two images in each set.")
    return features.mean(0), torch.cov(features.T).reshape(features.shape[1], features.shape[1])
