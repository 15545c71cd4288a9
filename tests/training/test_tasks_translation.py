"""Translation: every pair once an epoch, padding counts nowhere, BLEU when it is asked for."""

import math
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paretorch import zoo
from paretorch.errors import MissingExtraError
from paretorch.training.tasks.translation import Translation
from paretorch.zoo.data import translation as data


class _Letters:
    """A tokenizer in name: token 3 is a, 4 is b, and so on."""

    def get_vocab_size(self) -> int:
        return 9

    def decode(self, tokens: list[int]) -> str:
        return " ".join("abcdef"[token - 3] for token in tokens if token > 2)


def _pairs(count: int = 11) -> data.Translation:
    generator = torch.Generator().manual_seed(0)

    def sentence(length: int) -> list[int]:
        return torch.randint(3, 9, (length,), generator=generator).tolist()

    lengths = torch.randint(1, 6, (count, 2), generator=generator).tolist()
    pairs = [([*sentence(a), data.EOS], [data.BOS, *sentence(b), data.EOS]) for a, b in lengths]
    return data.Translation(pairs, pairs[:3], pairs[3:8], _Letters())


def _network() -> nn.Module:
    torch.manual_seed(1)
    return zoo.build("transformer", vocabulary=9, units=8, inner=8, heads=2, layers=1, dropout=0.0)


def _unpacked(rows: Tensor, sizes: Tensor) -> list[tuple[list[int], list[int]]]:
    count, source, target = sizes.tolist()
    sides = [rows[0, : count * source].view(count, source), rows[1, : count * target].view(count, target)]
    return [
        tuple([token for token in row if token != data.PAD] for row in pair)  # type: ignore[misc]
        for pair in zip(*(side.tolist() for side in sides), strict=True)
    ]


def test_an_epoch_holds_every_pair_once_in_an_order_of_its_own() -> None:
    pairs = _pairs()
    task = Translation(pairs, tokens=20, seed=1)
    orders = []
    for number in range(3):
        found = [pair for batch in zip(*task.epoch(number), strict=True) for pair in _unpacked(*batch)]
        assert sorted(found) == sorted(pairs.train)
        orders.append(found)
    assert orders[0] != orders[1] or orders[1] != orders[2]


def test_the_loss_is_the_mean_over_the_tokens_of_a_batch() -> None:
    task, model = Translation(_pairs(), tokens=40, label_smoothing=0.1), _network()
    rows, sizes = (part[0] for part in task.epoch(0))
    loss, (accuracy,) = task.loss(model, (rows, sizes))
    pairs = _unpacked(rows, sizes)
    assert len(pairs) > 1
    logits = [model(torch.tensor([source]), torch.tensor([target[:-1]]))[0] for source, target in pairs]
    following = torch.cat([torch.tensor(target[1:]) for _, target in pairs])
    expected = F.cross_entropy(torch.cat(logits), following, label_smoothing=0.1)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert accuracy.item() == pytest.approx((torch.cat(logits).argmax(1) == following).float().mean().item())


@pytest.mark.parametrize("validation", [False, True])
def test_evaluation_does_not_depend_on_the_batches_and_is_not_smoothed(validation: bool) -> None:
    pairs, model = _pairs(), _network().eval()
    found = [
        Translation(pairs, tokens=tokens, label_smoothing=0.2, validation=validation).evaluate(model)
        for tokens in (7, 100)
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    held_out = pairs.valid if validation else pairs.test
    with torch.no_grad():
        logits = [model(torch.tensor([source]), torch.tensor([target[:-1]]))[0] for source, target in held_out]
    following = torch.cat([torch.tensor(target[1:]) for _, target in held_out])
    loss = F.cross_entropy(torch.cat(logits), following).item()
    assert found[0] == pytest.approx({"test_loss": loss, "test_perplexity": math.exp(loss)}, rel=1e-5)


def test_bleu_gets_the_translations_in_the_order_of_the_references(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def corpus_bleu(translations: list[str], references: list[list[str]]) -> SimpleNamespace:
        seen.append((translations, references))
        return SimpleNamespace(score=12.5)

    class Oracle(nn.Module):
        """Knows the translations by heart."""

        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            return torch.zeros(*target.shape, 9)

        def greedy(self, source: Tensor) -> Tensor:
            known = {tuple(one): two for one, two in pairs.test}
            rows = [known[tuple(token for token in row if token != data.PAD)][1:] for row in source.tolist()]
            return torch.tensor([row + [data.PAD] * (9 - len(row)) for row in rows])

    pairs = _pairs()
    monkeypatch.setitem(sys.modules, "sacrebleu", SimpleNamespace(corpus_bleu=corpus_bleu))
    found = Translation(pairs, tokens=20, bleu=True).evaluate(Oracle())
    ((translations, (references,)),) = seen
    assert found["test_bleu"] == 12.5
    assert translations == references == [_Letters().decode(target) for _, target in pairs.test]


def test_only_bleu_needs_the_package_that_scores_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    assert "test_bleu" not in Translation(_pairs(), tokens=20).evaluate(_network().eval())
    with pytest.raises(MissingExtraError, match=r"paretorch\[text\]"):
        Translation(_pairs(), tokens=20, bleu=True)


def test_bf16_is_close_to_fp32() -> None:
    tasks = [Translation(_pairs(), tokens=40, autocast=autocast) for autocast in (False, True)]
    exact, rough = (task.evaluate(_network().eval())["test_loss"] for task in tasks)
    assert exact != rough
    assert exact == pytest.approx(rough, rel=0.05)
