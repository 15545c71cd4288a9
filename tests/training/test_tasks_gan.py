"""Generators: the discriminator's own steps, its state in the checkpoint, the Fréchet distance, and samples."""

import struct
import zlib
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import paretorch
from paretorch import zoo
from paretorch.cli.app import app
from paretorch.errors import ConfigError
from paretorch.training import Recipe, RunFolder, Runtime, Trainer, prepare, train
from paretorch.training.recipe_values import recipe_from
from paretorch.training.run import trainer_of
from paretorch.training.tasks import Batch, derive_seed
from paretorch.training.tasks.gan import CRITIC, LOSSES, Gan, distance
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
    return recipe_from({**options, **usual, "schedule": "constant", **others})


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
    torch.manual_seed(derive_seed(recipe.seed, 3))
    critic = Discriminator(2, 3)
    first, second = (torch.optim.Adam(one.parameters(), lr=2e-3) for one in (generator, critic))
    torch.manual_seed(derive_seed(recipe.seed, 0, 2))
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


@pytest.mark.parametrize(("name", "options"), [("digits-cnn", {"width": 2}), ("lstm-4", {"embedding": 3, "layers": 1})])
def test_features_of_another_kind_are_refused(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    paretorch.save(zoo.build(name, **options), tmp_path / "other.pare")
    recipe = _recipe(data_options={**_OPTIONS, "features": str(tmp_path / "other.pare")})
    with pytest.raises(ConfigError, match=r"other\.pare is no classifier of the images of noise"):
        prepare(recipe, Runtime(device="cpu"), _images())


def _pixels(picture: bytes) -> Tensor:
    """A PNG without filters, read by hand: bytes [height, width, channels]."""
    width, height, depth, colour = struct.unpack(">IIBB", picture[16:26])
    assert (picture[:8], depth, colour) == (b"\x89PNG\r\n\x1a\n", 8, 2)
    (length,) = struct.unpack(">I", picture[33:37])
    rows = zlib.decompress(picture[41 : 41 + length])
    read = torch.frombuffer(bytearray(rows), dtype=torch.uint8).view(height, 1 + 3 * width)
    assert not read[:, 0].any()
    return read[:, 1:].reshape(height, width, 3)


def test_the_samples_are_those_of_the_saved_generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo.data, "load", lambda *_: _images())
    train(_recipe(epochs=1, sparsity=0.5, bits=2.0, seed=3), tmp_path, Runtime(device="cpu", progress="quiet"))
    picture = _pixels((tmp_path / "samples.png").read_bytes())
    assert picture.shape == (8 * 32 + 7 * 2, 8 * 32 + 7 * 2, 3)
    noise = torch.randn(64, 4, generator=torch.Generator().manual_seed(derive_seed(3, 4)))
    with torch.no_grad():
        images = paretorch.load(tmp_path / "model.pare").eval()(noise)
    for number, image in enumerate(images.permute(0, 2, 3, 1)):
        top, left = (34 * place for place in divmod(number, 8))
        tile = picture[top : top + 32, left : left + 32].float()
        assert (tile - (image + 1) * 127.5).abs().max() < 0.51


def test_every_pixel_is_in_its_place() -> None:
    wanted = torch.randint(256, (64, 3, 32, 32), generator=torch.Generator().manual_seed(0))

    class Painter(nn.Module):
        def forward(self, noise: Tensor) -> Tensor:
            return wanted / 127.5 - 1

    task = prepare(_recipe(), Runtime(device="cpu"), _images()).task
    assert isinstance(task, Gan)
    picture = task.draw(Painter())
    assert picture.shape == (3, 270, 270)
    for row in range(8):
        for column in range(8):
            tile = picture[:, 34 * row : 34 * row + 34, 34 * column : 34 * column + 34]
            assert torch.equal(tile[:, :32, :32].long(), wanted[8 * row + column])
            assert not tile[:, 32:].any()
            assert not tile[:, :, 32:].any()


def test_the_samples_repeat_and_survive_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo.data, "load", lambda *_: _images())
    recipe, runtime = _recipe(bits=2.0, finetune=1), Runtime(device="cpu", progress="quiet", checkpoint_steps=1)
    whole, other, broken = tmp_path / "whole", tmp_path / "other", tmp_path / "broken"
    train(recipe, whole, runtime)
    train(_recipe(bits=2.0, finetune=1, seed=1), other, runtime)
    with monkeypatch.context() as killed:
        losses = iter([Gan.loss] * 4)
        killed.setattr(Gan, "loss", lambda *given: next(losses)(*given))
        with pytest.raises(StopIteration):
            train(recipe, broken, runtime)
    assert not (broken / "samples.png").exists()
    train(recipe, broken, runtime, resume=True)
    picture = (whole / "samples.png").read_bytes()
    assert picture == (broken / "samples.png").read_bytes()
    assert picture != (other / "samples.png").read_bytes()
    for name in ("samples.png", "result.json"):  # as if killed between the last step and the end
        (broken / name).unlink()
    train(recipe, broken, runtime, resume=True)
    assert picture == (broken / "samples.png").read_bytes()


def test_drawing_leaves_chance_and_the_network_alone() -> None:
    setup = prepare(_recipe(), Runtime(device="cpu"), _images())
    assert isinstance(setup.task, Gan)
    setup.model.eval()
    chance, state = torch.get_rng_state(), {name: value.clone() for name, value in setup.model.state_dict().items()}
    once, again = setup.task.draw(setup.model), setup.task.draw(setup.model)
    assert torch.equal(once, again)
    assert torch.equal(chance, torch.get_rng_state())
    assert all(torch.equal(value, state[name]) for name, value in setup.model.state_dict().items())


def test_the_report_shows_the_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo.data, "load", lambda *_: _images())
    run, page = tmp_path / "run", tmp_path / "page.html"
    train(_recipe(epochs=1, data="cifar10"), run, Runtime(device="cpu", progress="quiet"))
    shown = f'src="data:image/png;base64,{b64encode((run / "samples.png").read_bytes()).decode()}"'
    assert shown in (run / "report.html").read_text()

    def told(*words: object) -> str:
        result = CliRunner().invoke(app, ["report", *map(str, words), "--html", str(page)])
        assert result.exit_code == 0, result.output
        return page.read_text()

    assert shown in told(run)
    assert shown in told(run / "model.pare")
    assert "MACs" in page.read_text(), "what goes in is noise, not an image of the data"
    (run / "model.pare").rename(run / "another.pare")
    assert "<img" not in told(run / "another.pare"), "they are of model.pare"
    (run / "another.pare").rename(run / "model.pare")
    (run / "samples.png").unlink()
    assert "<img" not in told(run)


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


@pytest.mark.parametrize("name", ["l0", "stochastic"])
def test_masks_that_are_judged_by_their_loss_are_refused(name: str) -> None:
    """After all its epochs such a run could not be rounded."""
    with pytest.raises(ConfigError, match=f"{name} draws masks.*choose another pruning"):
        prepare(_recipe(pruning=name, sparsity=0.5), Runtime(device="cpu"), _images())


def test_a_generator_has_the_channels_of_the_images() -> None:
    with pytest.raises(ConfigError, match="channels must be 3, not 1"):
        prepare(_recipe(network_options={"latent": 4, "width": 2, "channels": 1}), Runtime(device="cpu"), _images())
