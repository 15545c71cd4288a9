"""Translation of sentences, chapter 5: pairs of like length padded to one batch, cross-entropy of the next token."""

import importlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paretorch.errors import DataError, MissingExtraError
from paretorch.support.arithmetic import widest_float
from paretorch.training.distillation import Teacher
from paretorch.training.tasks import Batch, derive_seed
from paretorch.zoo.data import translation as data
from paretorch.zoo.data.registry import data_root
from paretorch.zoo.networks.transformer import Transformer


def load_multi30k(root: str | Path | None, vocabulary: int = 10000) -> data.Translation:
    """The pairs in root/multi30k, German to English; says what is missing there."""
    folder = data_root(root) / "multi30k"
    names = [f"{part}.{language}" for part in ("train", "val", "test_2016_flickr") for language in ("de", "en")]
    if missing := [name for name in names if not (folder / name).is_file()]:
        remedy = "put the raw text of Multi30k there, one sentence per line, under these names"
        raise DataError(f"{folder} lacks {', '.join(missing)}; {remedy}")
    return data.load(folder, vocabulary=vocabulary)


class Translation:
    """Cross-entropy of the target's tokens given the source, with label smoothing; padding does not count.

    A batch holds pairs of like length, at most `tokens` tokens a side when padded. Which lengths meet in a batch is the
    same in every epoch; which pairs, and the order of the batches, are pure functions of (seed, epoch). The shapes of
    batches differ, so a step cannot be replayed. Evaluation gives loss and perplexity, without smoothing, and with
    `bleu` the score of greedy translations by sacrebleu.
    """

    tallies: tuple[str, ...] = ("accuracy",)
    fixed_shapes = False
    compiles = False  # anew for each shape
    teacher: Teacher | None = None

    def __init__(
        self,
        pairs: data.Translation,
        *,
        tokens: int = 4096,
        label_smoothing: float = 0.0,
        validation: bool = False,
        bleu: bool = False,
        seed: int = 0,
        device: torch.device | str = "cpu",
        autocast: bool = False,
    ) -> None:
        self._device = torch.device(device)
        self._pairs, self._tokens, self._smoothing = pairs, tokens, label_smoothing
        self._held_out = pairs.valid if validation else pairs.test
        self._seed, self._autocast = seed, autocast
        self._bleu = _sacrebleu() if bleu else None
        sizes = [max(batch.source.numel(), batch.target.numel()) for batch in data.batches(pairs.train, tokens, 0)]
        self.steps, self._width = len(sizes), max(sizes)

    def epoch(self, number: int) -> Batch:
        """Each batch as two rows of tokens, filled up to one length, and its sizes (pairs, source, target)."""
        rows = torch.zeros(self.steps, 2, self._width, dtype=torch.int64)
        sizes = torch.zeros(self.steps, 3, dtype=torch.int64)
        for step, batch in enumerate(data.batches(self._pairs.train, self._tokens, derive_seed(self._seed, number, 0))):
            for side, part in enumerate((batch.source, batch.target)):
                rows[step, side, : part.numel()] = part.flatten()
            sizes[step] = torch.tensor([*batch.source.shape, batch.target.shape[1]])
        return rows.to(self._device), sizes.to(self._device)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        rows, sizes = batch
        count, *lengths = sizes.tolist()
        source, target = (row[: count * length].view(count, length) for row, length in zip(rows, lengths, strict=True))
        logits, following = self._logits(model, source, target)
        loss = F.cross_entropy(logits, following, ignore_index=data.PAD, label_smoothing=self._smoothing)
        if (teacher := self.teacher) is not None:
            other, _ = teacher.outputs(lambda model: self._logits(model, source, target))
            loss = teacher.mix(loss, logits, other, mask=following != data.PAD)
        right = (logits.detach().argmax(1) == following) & (following != data.PAD)
        return loss, (right.sum() / (following != data.PAD).sum(),)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        total = torch.zeros((), dtype=widest_float(self._device), device=self._device)
        translations = [""] * len(self._held_out)
        with torch.no_grad():
            for batch in data.batches(self._held_out, self._tokens):
                source, target = batch.source.to(self._device), batch.target.to(self._device)
                logits, following = self._logits(model, source, target)
                total += F.cross_entropy(logits, following, ignore_index=data.PAD, reduction="sum").to(total.dtype)
                if self._bleu is not None:
                    for row, text in zip(batch.rows, self._translate(model, source), strict=True):
                        translations[row] = text
        loss = float(total) / sum(len(target) - 1 for _, target in self._held_out)
        metrics = {"test_loss": loss, "test_perplexity": math.exp(min(loss, 700.0))}  # beyond, a float overflows
        if self._bleu is not None:
            references = [self._pairs.text(target[1:]) for _, target in self._held_out]
            metrics["test_bleu"] = float(self._bleu.corpus_bleu(translations, [references]).score)
        return metrics

    def example(self) -> Tensor:
        return torch.tensor([self._held_out[0][0]], device=self._device)

    def _logits(self, model: nn.Module, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Logits in fp32, one row per token, and the token that each row predicts."""
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._autocast):
            logits: Tensor = model(source, target[:, :-1])
        return logits.float().flatten(0, 1), target[:, 1:].flatten()

    def _translate(self, model: nn.Module, source: Tensor) -> Sequence[str]:
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._autocast):
            found = cast(Transformer, model).greedy(source)
        return [self._pairs.text(row) for row in found.tolist()]


def _sacrebleu() -> Any:
    try:
        return importlib.import_module("sacrebleu")
    except ImportError as error:
        raise MissingExtraError("BLEU needs the package sacrebleu: pip install paretorch[text]") from error
