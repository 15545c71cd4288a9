"""Image classification; of sets in memory, which live on the device as uint8, a whole epoch is augmented at once."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paretorch.errors import ConfigError
from paretorch.support.arithmetic import widest_float
from paretorch.support.inputs import main_output
from paretorch.training.distillation import Teacher
from paretorch.training.tasks import Batch, derive_seed, shuffled
from paretorch.zoo.data import Augment, Images, augment

IMAGES = ("digits", "cifar10", "cifar100")
"""The data sets of images."""
_EVALUATION_BATCH = 1000


class Classification:
    """Cross-entropy on images, with a teacher or without; where the images are is for subclasses to say.

    `autocast` gives bf16 for the matrix work; weights and the loss stay fp32.
    """

    tallies: tuple[str, ...] = ("accuracy",)
    splits = True
    teacher: Teacher | None = None

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        count: int,
        batch: int,
        label_smoothing: float,
        seed: int,
        device: torch.device | str,
        autocast: bool,
    ) -> None:
        self._device = torch.device(device)
        self._batch = batch
        self._smoothing = label_smoothing
        self._seed = seed
        self._autocast = autocast
        self.steps = count // batch
        if self.steps == 0:
            raise ConfigError(
                f"A batch of {batch} is larger than the training set of {count} images: give --batch {count} or fewer"
            )
        # Kept as tensors on the device: a captured step may not copy from the host.
        shape = (1, len(mean), 1, 1)
        self._centre = torch.tensor(mean, device=self._device).view(shape) * 255
        self._scale = 1 / (torch.tensor(std, device=self._device).view(shape) * 255)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        pixels, labels, *colours = batch
        logits = self._logits(model, pixels, *colours)
        loss = F.cross_entropy(logits, labels, label_smoothing=self._smoothing)
        if (teacher := self.teacher) is not None:
            loss = teacher.mix(loss, logits, teacher.outputs(lambda other: self._logits(other, pixels, *colours)))
        return loss, ((logits.detach().argmax(1) == labels).float().mean(),)

    def _prepared(self, pixels: Tensor, *colours: Tensor) -> Tensor:
        values = pixels.float()
        for matrices in colours:
            values = recolour(values, matrices)
        values = (values - self._centre) * self._scale
        dtype = torch.bfloat16 if self._autocast else torch.float32
        return values.to(dtype).contiguous(memory_format=torch.channels_last)

    def _logits(self, model: nn.Module, pixels: Tensor, *colours: Tensor) -> Tensor:
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._autocast):
            found = model(self._prepared(pixels, *colours))
        return main_output(found).float()


def recolour(values: Tensor, matrices: Tensor) -> Tensor:
    """Ax + t of every pixel, with a matrix [A | t] per image, where t is for channels from 0 to 1 and the values go to 255."""
    linear, offset = matrices[:, :, :3], 255 * matrices[:, :, 3:]
    return torch.baddbmm(offset, linear, values.flatten(2)).view_as(values)


class ImageClassification(Classification):
    """Classification of images in memory; the last partial batch of an epoch is dropped.

    Order and augmentation of an epoch are pure functions of (seed, epoch).
    """

    def __init__(
        self,
        images: Images,
        *,
        batch: int = 128,
        how: Augment | None = None,
        label_smoothing: float = 0.0,
        seed: int = 0,
        device: torch.device | str = "cpu",
        autocast: bool = False,
    ) -> None:
        super().__init__(
            images.mean,
            images.std,
            count=len(images.train[1]),
            batch=batch,
            label_smoothing=label_smoothing,
            seed=seed,
            device=device,
            autocast=autocast,
        )
        self._images = images.to(self._device)
        self._how = how or Augment()

    def epoch(self, number: int) -> Batch:
        pixels, labels = self._images.train
        order = shuffled(len(labels), derive_seed(self._seed, number, 0))[: self.steps * self._batch].to(self._device)
        pixels = augment(pixels[order], self._how, derive_seed(self._seed, number, 1))
        return pixels.view(self.steps, self._batch, *pixels.shape[1:]), labels[order].view(self.steps, self._batch)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        pixels, labels = self._images.test
        totals = torch.zeros(2, dtype=widest_float(self._device), device=self._device)
        with torch.no_grad():
            for start in range(0, len(labels), _EVALUATION_BATCH):
                part = slice(start, start + _EVALUATION_BATCH)
                logits = self._logits(model, pixels[part])
                wrong = F.cross_entropy(logits, labels[part], reduction="sum")
                right = (logits.argmax(1) == labels[part]).sum()
                totals += torch.stack([wrong.to(totals.dtype), right.to(totals.dtype)])
        loss, correct = (totals / len(labels)).tolist()
        return {"test_loss": loss, "test_accuracy": correct}

    def example(self) -> Tensor:
        return self._prepared(self._images.test[0][:2])

    def inputs(self, number: int, count: int) -> list[Tensor]:
        """Up to `count` training batches of an epoch as the model sees them, to re-estimate statistics with."""
        return [self._prepared(pixels) for pixels in self.epoch(number)[0][:count]]
