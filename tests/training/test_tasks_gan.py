"""Generators: the discriminator's own steps, its state in the checkpoint, and the Fréchet distance."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paretorch
from paretorch import zoo
from paretorch.errors import ConfigError
from paretorch.training import Recipe, RunFolder, Runtime, Trainer, prepare, train
from paretorch.training.run import trainer_of
from paretorch.training.task import Batch, mix
from paretorch.training.tasks import Gan
from paretorch.training.tasks.frechet import distance
from paretorch.training.tasks.gan import CRITIC, LOSSES
from paretorch.zoo.data import Images
from paretorch.zoo.networks.dcgan import Discriminator

from .blobs import rows_of

_OPTIONS = {"critic_width": 2, "samples": 12}


def _images(size: int = 32) -> Images:
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randint(256, (count, 3, size, size), generator=generator, dtype=torch.uint8) for count in (26, 9)]
    train, test = ((pixels, torch.arange(len(pixels)) % 2) for pixels in parts)
    return Images("noise", train, test, 2, (0.5,) * 3, (0.25,) * 3)


def _recipe(**others: Any) -> Recipe:
    options = {"network_options": {"latent": 4, "width": 2}, "data_options": _OPTIONS}
    usual = {
        "network": "dcgan-generator",
        "batch": 4,
        "epochs": 2,
        "optimizer": "adam",
        "lr": 2e-3,
        "weight_decay": 0.0,
    }
    return Recipe(**{**options, **usual, "schedule": "constant", **others})


def _trainer(recipe: Recipe, out: Path, *, resume: bool = False, every: int = 0, stop: int | None = None) -> Trainer:
    runtime = Runtime(device="cpu", checkpoint_steps=every, progress="quiet")
    setup = prepare(recipe, runtime, _images())
    trainer = trainer_of(setup, recipe, RunFolder(out, recipe, resume=resume), runtime)
    loss, taken = setup.task.loss, 0

    def stopping(model: nn.Module, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        nonlocal taken
        if taken == stop:
            raise KeyboardInterrupt
        taken += 1
        return loss(model, batch)

    setup.task.loss = stopping  # type: ignore[method-assign]
    return trainer


def _everything(trainer: Trainer) -> dict[str, Tensor]:
    """The generator's state, and the discriminator's weights."""
    state = trainer.model.state_dict()
    critic = state.pop(f"{CRITIC}._extra_state")["network"]
    both = {**state, **{f"critic.{name}": value for name, value in critic.items()}}
    return {name: value.clone() for name, value in both.items()}


@pytest.mark.parametrize("targets", [{}, {"sparsity": 0.5, "bits": 2.0, "finetune": 1}])
@pytest.mark.parametrize(("every", "stop"), [(0, 2), (1, 2), (1, 4), (0, 5)])
def test_a_stopped_run_continues_bit_for_bit(tmp_path: Path, targets: dict[str, Any], every: int, stop: int) -> None:
    recipe = _recipe(**targets)
    whole = _trainer(recipe, tmp_path / "whole")
    whole.run()
    with pytest.raises(KeyboardInterrupt):
        _trainer(recipe, tmp_path / "broken", every=every, stop=stop).run()
    continued = _trainer(recipe, tmp_path / "broken", resume=True)
    continued.run(resume=True)
    expected, found = _everything(whole), _everything(continued)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert rows_of(whole) == rows_of(continued)


@pytest.mark.parametrize("name", LOSSES)
def test_training_is_that_of_a_plain_loop(tmp_path: Path, name: str) -> None:
    recipe = _recipe(epochs=1, data_options={**_OPTIONS, "loss": name})
    trainer = _trainer(recipe, tmp_path)
    trainer.run()
    critic_loss, generator_loss = LOSSES[name]
    torch.manual_seed(recipe.seed)
    generator = zoo.build("dcgan-generator", latent=4, width=2)
    torch.manual_seed(mix(recipe.seed, 3))
    critic = Discriminator(2, 3)
    first, second = (torch.optim.Adam(one.parameters(), lr=2e-3) for one in (generator, critic))
    torch.manual_seed(mix(recipe.seed, 0, 2))
    for pixels in trainer.task.epoch(0)[0]:
        for real in pixels:
            fake = generator(torch.randn(4, 4)).detach()
            second.zero_grad()
            critic_loss(critic(real / 127.5 - 1), critic(fake)).backward()
            second.step()
        first.zero_grad()
        generator_loss(critic(generator(torch.randn(4, 4)))).backward()
        first.step()
    found = _everything(trainer)
    expected = {**generator.state_dict(), **{f"critic.{key}": value for key, value in critic.state_dict().items()}}
    assert set(found) == set(expected)
    for key, value in expected.items():
        assert torch.allclose(found[key].float(), value.float(), atol=1e-6), key


def test_the_optimizer_of_the_generator_does_not_see_the_discriminator(tmp_path: Path) -> None:
    trainer = _trainer(_recipe(), tmp_path)
    held = {id(weight) for group in trainer.optimizer.param_groups for weight in group["params"]}
    assert held == {id(weight) for weight in trainer.model.parameters()}
    assert len(held) == len(list(zoo.build("dcgan-generator").parameters()))


def test_a_whole_run_leaves_the_generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo.data, "load", lambda *_: _images())
    result = train(_recipe(epochs=1, bits=2.0), tmp_path, Runtime(device="cpu", progress="quiet"))
    assert result["test_frechet"] > 0
    assert result["macs"] > 0
    assert paretorch.load(tmp_path / "model.pare")(torch.zeros(2, 4)).shape == (2, 3, 32, 32)


def test_features_may_come_from_a_classifier(tmp_path: Path) -> None:
    classifier = zoo.build("conv6", classes=2)
    paretorch.save(classifier, tmp_path / "classifier.pare")
    options = {**_OPTIONS, "features": str(tmp_path / "classifier.pare")}
    setup = prepare(_recipe(data_options=options), Runtime(device="cpu"), _images())
    plain = prepare(_recipe(), Runtime(device="cpu"), _images())
    metrics = [each.task.evaluate(each.model.eval())["test_frechet"] for each in (setup, plain)]
    assert metrics[0] != pytest.approx(metrics[1])
    assert setup.task.evaluate(setup.model) == setup.task.evaluate(setup.model)


def test_the_distance_of_gaussians_with_diagonal_covariance() -> None:
    one = torch.randn(4000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one = (one - one.mean(0)) @ torch.linalg.inv(torch.linalg.cholesky(torch.cov(one.T))).T  # covariance exactly 1
    other = one * torch.tensor([1.0, 2.0, 0.5]) + torch.tensor([0.0, 3.0, 0.0])
    assert distance(one, one) == pytest.approx(0, abs=1e-9)
    assert distance(one, other) == pytest.approx(9 + 1 + 0.25)  # Σ (μ₁ − μ₂)² + Σ (σ₁ − σ₂)²
    assert distance(one, other) == pytest.approx(distance(other, one))


def test_what_cannot_work_is_refused() -> None:
    def build(images: Images, **options: Any) -> Gan:
        return Gan(images, lambda weights: torch.optim.SGD(weights, lr=0.1), **options)

    with pytest.raises(ConfigError, match="images of 32×32"):
        build(_images(8))
    with pytest.raises(ConfigError, match="bce or hinge"):
        build(_images(), loss="mse")
    with pytest.raises(ConfigError, match="too small for batches of 64"):
        build(_images())
    with pytest.raises(ConfigError, match="at least two images"):
        distance(torch.zeros(1, 3), torch.zeros(5, 3))
