"""Image generation with a discriminator, chapters 5 and 6: a DCGAN, and with the hinge loss a GGAN.

The model of the loop is the generator: it is what the plan compresses and what is saved. The discriminator is the
task's own, with an optimizer of the same kind, and takes its steps inside `loss`, as a plan trains its decisions by
itself. It travels in the extra state of a module on the model, so that a checkpoint holds it and no optimizer sees it.

Generators are compared by the Fréchet distance between two sets of images, by the features of a network of the user's or by
coarse pixels. FID (Heusel et al., 2017) is this distance by the features of an Inception network, whose weights this library
does not bring. Distances by other features order generators of one study, and compare with nothing else.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paretorch.errors import ConfigError
from paretorch.support.eval_mode import run_example
from paretorch.training.optimizers import load_state
from paretorch.training.tasks import Batch, derive_seed, shuffled
from paretorch.zoo.data import Images
from paretorch.zoo.networks import dcgan

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
                raise ConfigError(f"{path} has no linear layer to take features from; give a classifier's artefact")
            linear[-1].register_forward_pre_hook(self._remember)
            try:
                run_example(self._network, torch.zeros(2, *images.test[0].shape[1:]))
            except ConfigError as error:
                raise ConfigError(f"{path} is no classifier of the images of {images.name}: {error}") from error

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
    (mean1, spread1), (mean2, spread2) = (_moments(features.to("cpu", torch.float64)) for features in (one, other))
    values, vectors = torch.linalg.eigh(spread1)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    cross = torch.linalg.eigvalsh(root @ spread2 @ root).clamp(min=0).sqrt().sum()
    return float((mean1 - mean2).square().sum() + spread1.trace() + spread2.trace() - 2 * cross)


def _moments(features: Tensor) -> tuple[Tensor, Tensor]:
    if len(features) < 2:
        raise ConfigError("A Fréchet distance needs at least two images in each set")
    return features.mean(0), torch.cov(features.T).reshape(features.shape[1], features.shape[1])


CRITIC = "paretorch_critic"
LOSSES = {
    "bce": (dcgan.bce_discriminator, dcgan.bce_generator),
    "hinge": (dcgan.hinge_discriminator, dcgan.hinge_generator),
}
_EVALUATION_BATCH = 500
_SAMPLES_SEED = 12345
_SIDE, _GAP = 8, 2

Optimize = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class _Critic(nn.Module):
    """The discriminator and its optimizer, as state of the model but not as parameters of it."""

    def __init__(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.held = (network, optimizer)  # in a tuple: not a submodule

    def get_extra_state(self) -> dict[str, Any]:
        network, optimizer = self.held
        return {"network": network.state_dict(), "optimizer": optimizer.state_dict()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        network, optimizer = self.held
        network.load_state_dict(state["network"])
        load_state(optimizer, state["optimizer"])


class Gan:
    """`critic_steps` steps of the discriminator, each on its own images, then one of the generator.

    The discriminator's learning rate is constant. Images are scaled to [−1, 1], without augmentation. The metric is the
    Fréchet distance between `samples` generated images and the held-out ones, by `Features`; it is no FID by Inception
    and compares only with itself.
    """

    tallies: tuple[str, ...] = ("critic_loss",)
    fixed_shapes = False  # two optimizers in one step; the discriminator's is not made to be replayed
    compiles = False

    def __init__(
        self,
        images: Images,
        optimize: Optimize,
        *,
        batch: int = 64,
        latent: int = 100,
        loss: str = "hinge",
        critic_steps: int = 2,
        critic_width: int = 64,
        samples: int = 10000,
        features: str = "",
        seed: int = 0,
        device: torch.device | str = "cpu",
        autocast: bool = False,
    ) -> None:
        if images.train[0].shape[2:] != (32, 32):
            raise ConfigError(f"The generator makes images of 32×32; those of {images.name} have another size")
        if loss not in LOSSES:
            raise ConfigError(f"The loss of a generator is {' or '.join(LOSSES)}, not {loss!r}")
        self._device = torch.device(device)
        self._images = images.train[0].to(self._device)
        self._critic_loss, self._generator_loss = LOSSES[loss]
        self._optimize, self._width, self._samples = optimize, critic_width, samples
        self._batch, self._critic_steps, self._seed, self._autocast = batch, critic_steps, seed, autocast
        self._latent = latent
        self.steps = len(self._images) // (batch * critic_steps)
        if self.steps == 0:
            raise ConfigError(f"The training set of {len(self._images)} images is too small for batches of {batch}")
        self._features = Features(features, images, self._device)
        self._real = self._features(images.test[0].to(self._device).float() / 127.5 - 1)

    def attach(self, model: nn.Module) -> None:
        """Make the discriminator, from the recipe's seed, and let it travel with the model."""
        state = torch.get_rng_state()
        torch.manual_seed(derive_seed(self._seed, 3))
        network = dcgan.Discriminator(self._width, self._images.shape[1]).to(self._device)
        torch.set_rng_state(state)
        model.add_module(CRITIC, _Critic(network, self._optimize(list(network.parameters()))))

    def release(self, model: nn.Module) -> None:
        """Take it away: what is left is the generator."""
        delattr(model, CRITIC)

    def epoch(self, number: int) -> Batch:
        used = self.steps * self._critic_steps * self._batch
        order = shuffled(len(self._images), derive_seed(self._seed, number, 0))[:used].to(self._device)
        return (self._images[order].view(self.steps, self._critic_steps, self._batch, *self._images.shape[1:]),)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        critic = model.get_submodule(CRITIC)
        assert isinstance(critic, _Critic)
        network, optimizer = critic.held
        for pixels in batch[0]:
            with torch.no_grad():
                fake = self._generate(model, self._noise())
            optimizer.zero_grad()
            wrong = self._critic_loss(self._judge(network, pixels.float() / 127.5 - 1), self._judge(network, fake))
            wrong.backward()
            optimizer.step()
        # The generator's loss leaves gradients on the discriminator too; they are cleared before its next step.
        fake = self._generate(model, self._noise())
        return self._generator_loss(self._judge(network, fake)), (wrong.detach(),)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        generator = torch.Generator().manual_seed(_SAMPLES_SEED)
        noise = torch.randn(self._samples, self._latent, generator=generator).to(self._device)
        with torch.no_grad():
            found = [self._features(self._generate(model, part)) for part in noise.split(_EVALUATION_BATCH)]
        return {"test_frechet": distance(self._real, torch.cat(found))}

    def draw(self, model: nn.Module) -> Tensor:
        """8×8 images from noise by the task's seed: the first 64, none chosen.

        The network is on the CPU and runs in float32, so that the picture is that of the saved file, whatever trained it.
        """
        generator = torch.Generator().manual_seed(derive_seed(self._seed, 4))
        with torch.no_grad():
            images: Tensor = model(torch.randn(_SIDE**2, self._latent, generator=generator))
        return _grid(images)

    def example(self) -> Tensor:
        return torch.zeros(2, self._latent, device=self._device)

    def _noise(self) -> Tensor:
        return torch.randn(self._batch, self._latent, device=self._device)

    def _generate(self, model: nn.Module, noise: Tensor) -> Tensor:
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._autocast):
            images: Tensor = model(noise)
        return images.float()

    def _judge(self, network: nn.Module, images: Tensor) -> Tensor:
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._autocast):
            logits: Tensor = network(images)
        return logits.float()


def _grid(images: Tensor) -> Tensor:
    """Images in [−1, 1] as bytes, row by row beside each other, with black lines between them."""
    pixels = ((images + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
    tiles: Tensor = F.pad(pixels, (0, _GAP, 0, _GAP)).unflatten(0, (_SIDE, _SIDE))
    return tiles.permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2)[:, :-_GAP, :-_GAP]
