"""What every task promises the loop: a seed repeats a run, and a run stopped anywhere continues bit for bit."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paretorch.training import Recipe, RunFolder, Runtime, Trainer, prepare, train
from paretorch.training.recipe_values import changed, recipe_from
from paretorch.training.run import trainer_of
from paretorch.training.tasks import Batch, first_batches
from tests.photos import write_folders

from .blobs import rows_of, state_of

_TEXT = "the cat sat on a mat \n a dog sat \n the dog ran to the cat \n" * 4
_GERMAN = ["ein großer Hund", "zwei Hunde laufen", "ein Mann", "die Straße ist naß und lang", "ein Hund läuft"]
_ENGLISH = ["a big dog", "two dogs run", "a man", "the street is wet and long", "a dog runs"]
_LSTM: dict[str, Any] = {"network": "lstm-6", "network_options": {"embedding": 4, "layers": 2}, "batch": 3}
RECIPES: dict[str, dict[str, Any]] = {
    "ptb": {"data_options": {"bptt": 5}, **_LSTM},
    "ptb-char": {"data_options": {"bptt": 17}, **_LSTM},
    "multi30k": {
        "network": "transformer",
        "network_options": {"units": 8, "inner": 8, "heads": 2, "layers": 1},
        "data_options": {"vocabulary": 280},
        "batch": 30,
    },
    "shortest-paths": {
        "network": "shortest-paths-cnn",
        "network_options": {"layers": 2, "width": 4},
        "data_options": {"limit": 3, "count": 18, "test_count": 7, "size": 6},
        "batch": 4,
    },
    "imagenet": {
        "network": "wrn-10-1",
        "network_options": {"dropout": 0.3},
        "data_options": {"size": 12, "jitter": True},
        "batch": 6,
    },
}
"""Those of imagenet are read by worker processes."""
Make = Callable[..., Trainer]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny data in the layout of the real sets."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "ptb").mkdir()
    (folder / "multi30k").mkdir()
    for part in ("train", "valid", "test"):
        (folder / "ptb" / f"ptb.{part}.txt").write_text(_TEXT)
        (folder / "ptb" / f"ptb.char.{part}.txt").write_text(" ".join(_TEXT.replace(" ", "_")).replace(" \n ", "\n"))
    for part in ("train", "val", "test_2016_flickr"):
        for language, lines in (("de", _GERMAN), ("en", _ENGLISH)):
            (folder / "multi30k" / f"{part}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_folders(folder / "imagenet")
    return folder


def _recipe(data: str, **others: Any) -> Recipe:
    if data == "multi30k":
        pytest.importorskip("tokenizers")
    if data == "imagenet":
        pytest.importorskip("PIL")
    usual = {"epochs": 2, "optimizer": "adam", "lr": 0.01, "clip_norm": 0.5}
    return recipe_from({"data.name": data, **RECIPES[data], **usual, **others})


@pytest.fixture
def make(root: Path, tmp_path: Path) -> Make:
    """A trainer as a fresh process would build it; it is stopped when `stop` losses have been computed."""

    def build(recipe: Recipe, name: str, *, resume: bool = False, every: int = 0, stop: int | None = None) -> Trainer:
        runtime = Runtime(root=str(root), device="cpu", checkpoint_steps=every, progress="quiet", workers=1)
        setup = prepare(recipe, runtime)
        trainer = trainer_of(setup, recipe, RunFolder(tmp_path / name, recipe, resume=resume), runtime)
        loss, taken = setup.task.loss, 0

        def stopping(model: nn.Module, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
            nonlocal taken
            if taken == stop:
                raise KeyboardInterrupt
            taken += 1
            return loss(model, batch)

        setup.task.loss = stopping  # type: ignore[method-assign]
        return trainer

    return build


@pytest.mark.parametrize("data", RECIPES)
def test_a_seed_repeats_the_run_and_another_does_not(make: Make, data: str) -> None:
    runs = [make(_recipe(data, seed=seed), name) for seed, name in ((3, "a"), (3, "b"), (4, "c"))]
    for run in runs:
        run.run()
    first, same, other = (state_of(run) for run in runs)
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert rows_of(runs[0]) == rows_of(runs[1])
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("data", RECIPES)
def test_an_epoch_is_a_pure_function_of_its_number_with_the_same_shapes(make: Make, data: str) -> None:
    task, same = (make(_recipe(data), name).task for name in ("a", "b"))
    task.epoch(0)
    once, again, another = (first_batches(one, number, one.steps) for one, number in ((task, 1), (same, 1), (same, 2)))
    assert all(torch.equal(one, two) for one, two in zip(once, again, strict=True))
    assert [one.shape for one in once] == [two.shape for two in another]
    assert all(len(rows) == task.steps for rows in once)


@pytest.mark.parametrize("data", RECIPES)
@pytest.mark.parametrize(("every", "part"), [(0, 0.4), (1, 0.4), (1, 0.7), (0, 0.7)])
def test_a_stopped_run_continues_bit_for_bit(make: Make, data: str, every: int, part: float) -> None:
    recipe = _recipe(data)
    whole = make(recipe, "whole")
    whole.run()
    steps = whole.task.steps
    assert steps > 2  # so that there is a middle of an epoch to stop in
    broken = make(recipe, "broken", every=every, stop=int(2 * steps * part))
    with pytest.raises(KeyboardInterrupt):
        broken.run()
    continued = make(recipe, "broken", resume=True)
    continued.run(resume=True)
    expected, found = state_of(whole), state_of(continued)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert rows_of(whole) == rows_of(continued)


@pytest.mark.parametrize("data", ["ptb-char", "shortest-paths", "multi30k", "imagenet"])
@pytest.mark.parametrize("part", [0.3, 0.5, 0.8])
def test_a_compressed_run_stopped_in_any_phase_continues_bit_for_bit(make: Make, data: str, part: float) -> None:
    recipe = _recipe(data, finetune=1, sparsity=0.5, bits=2.0)
    whole = make(recipe, "whole")
    last = whole.run()
    assert last["sparsity"] == pytest.approx(0.5, abs=0.05)
    broken = make(recipe, "broken", every=1, stop=int(3 * whole.task.steps * part))
    with contextlib.suppress(KeyboardInterrupt):
        broken.run()
    continued = make(recipe, "broken", resume=True)
    continued.run(resume=True)
    expected, found = state_of(whole), state_of(continued)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert rows_of(whole) == rows_of(continued)


@pytest.mark.parametrize("data", RECIPES)
@pytest.mark.parametrize("targets", [{}, {"sparsity": 0.5, "bits": 2.0, "finetune": 1}])
def test_a_whole_run_leaves_an_artefact_of_the_plain_network(
    root: Path, tmp_path: Path, data: str, targets: dict[str, Any]
) -> None:
    import paretorch

    runtime = Runtime(root=str(root), device="cpu", progress="quiet")
    recipe = _recipe(data, epochs=1, **targets)
    result = train(recipe, tmp_path, runtime)
    assert result["bytes"] == (tmp_path / "model.pare").stat().st_size
    setup = prepare(changed(recipe, {"sparsity": None, "bits": None, "finetune": 0}), runtime)
    keys = list(setup.model.state_dict())
    paretorch.load(tmp_path / "model.pare", into=setup.model)
    assert list(setup.model.state_dict()) == keys
    found = setup.task.evaluate(setup.model.eval())
    assert found == pytest.approx({name: result[name] for name in found}, rel=1e-5)
    assert train(recipe, tmp_path, runtime, resume=True) == result
