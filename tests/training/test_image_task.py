"""Images as a task: order, augmentation and evaluation."""

import pytest
import torch
from torch import Tensor, nn

from paretorch.errors import ConfigError
from paretorch.training import ImageClassification, Runtime, prepare
from paretorch.training.recipe_values import recipe_from
from paretorch.zoo.data import Augment, Images, normalise


def _images(train: int = 20, test: int = 7) -> Images:
    generator = torch.Generator().manual_seed(0)

    def part(count: int) -> tuple[Tensor, Tensor]:
        pixels = torch.randint(256, (count, 2, 4, 4), generator=generator, dtype=torch.uint8)
        return pixels, torch.arange(count) % 3

    return Images("noise", part(train), part(test), 3, (0.4, 0.5), (0.2, 0.3))


def test_an_epoch_is_a_pure_function_of_seed_and_number() -> None:
    images = _images()
    one, same = (ImageClassification(images, batch=6, seed=1) for _ in range(2))
    other = ImageClassification(images, batch=6, seed=2)
    one.epoch(0)
    assert all(torch.equal(a, b) for a, b in zip(one.epoch(3), same.epoch(3), strict=True))
    assert not torch.equal(one.epoch(3)[0], one.epoch(4)[0])
    assert not torch.equal(one.epoch(3)[0], other.epoch(3)[0])


def test_an_epoch_holds_every_image_once_less_the_last_partial_batch() -> None:
    images = _images(20)
    task = ImageClassification(images, batch=6, how=Augment(pad=0, flip=False))
    pixels, labels = task.epoch(0)
    assert task.steps == 3
    assert pixels.shape == (3, 6, 2, 4, 4)
    assert pixels.dtype == torch.uint8
    rows = {tuple(image.flatten().tolist()): int(label) for image, label in zip(*images.train, strict=True)}
    seen = [tuple(image.flatten().tolist()) for image in pixels.flatten(0, 1)]
    assert len(set(seen)) == 18
    assert all(rows[image] == int(label) for image, label in zip(seen, labels.flatten(), strict=True))


def test_the_model_sees_normalised_images() -> None:
    images = _images()
    task = ImageClassification(images, batch=6)
    expected = normalise(images.test[0][:2], images.mean, images.std, torch.float32)
    assert torch.allclose(task.example(), expected, atol=1e-6)


def test_evaluation_is_the_mean_over_all_test_images() -> None:
    images = _images(test=7)

    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tensor([0.0, 5.0, 0.0]).expand(len(x), 3)

    metrics = ImageClassification(images, batch=6).evaluate(Constant())
    assert metrics["test_accuracy"] == pytest.approx(2 / 7)
    log_total = torch.logsumexp(torch.tensor([0.0, 5.0, 0.0]), 0).item()
    assert metrics["test_loss"] == pytest.approx(log_total - 5 * 2 / 7, rel=1e-5)


def test_loss_and_accuracy_of_a_batch() -> None:
    images = _images()
    task = ImageClassification(images, batch=6, label_smoothing=0.1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(32, 3))
    pixels, labels = (rows[0] for rows in task.epoch(0))
    loss, (accuracy,) = task.loss(model, (pixels, labels))
    logits = model(normalise(pixels, images.mean, images.std, torch.float32))
    assert loss.item() == pytest.approx(nn.CrossEntropyLoss(label_smoothing=0.1)(logits, labels).item(), rel=1e-4)
    assert accuracy.item() == pytest.approx((logits.argmax(1) == labels).float().mean().item())


def test_a_batch_larger_than_the_set_is_refused() -> None:
    with pytest.raises(ConfigError, match="larger than the training set of 20"):
        ImageClassification(_images(20), batch=21)


def _is_last(tensor: Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


@pytest.mark.parametrize(
    ("network", "data", "options"),
    [
        ("digits-cnn", "digits", None),
        ("shortest-paths-cnn", "shortest-paths", {"count": 8, "test_count": 2, "size": 8}),
    ],
)
def test_images_and_weights_have_their_channels_last_on_every_device(
    network: str, data: str, options: dict[str, int] | None
) -> None:
    setup = prepare(
        recipe_from({"network": network, "data.name": data, "data.batch": 4, "data.options": options}),
        Runtime(device="cpu"),
    )
    wide = [weight for weight in setup.model.parameters() if weight.dim() == 4 and min(weight.shape) > 1]
    assert wide
    assert all(_is_last(weight) for weight in wide)
    seen: list[Tensor] = []
    first = next(module for module in setup.model.modules() if isinstance(module, nn.Conv2d))
    with torch.no_grad():
        first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        first.register_forward_hook(lambda _, __, output: seen.append(output))
        setup.task.loss(setup.model, tuple(part[0] for part in setup.task.epoch(0)))
    assert seen[0].is_contiguous(memory_format=torch.channels_last)
    assert _is_last(seen[1])
