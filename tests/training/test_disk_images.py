"""Images that stay on the disk: the same batches for any number of workers, ranks and resumes; what is wrong with a file is said by its name."""

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from paretorch.cli.app import app
from paretorch.errors import ConfigError, DataError
from paretorch.training import Runtime, prepare
from paretorch.training.recipe_values import recipe_from
from paretorch.training.tasks import SharedTask, first_batches
from paretorch.zoo import data
from tests.photos import encoded, write_folders, write_shards, write_tar

_NETWORK = {"network": "wrn-10-1", "epochs": 1, "batch": 6}
Rows = list[tuple[Tensor, ...]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    pytest.importorskip("PIL")
    made = tmp_path_factory.mktemp("data")
    write_folders(made / "imagenet")  # 24 and 9 images
    write_shards(made / "shards")  # 15 and 5
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(made / "cache"))
        yield made


def task_of(root: Path, name: str = "imagenet", workers: int = 0, **options: Any) -> Any:
    recipe = recipe_from({**_NETWORK, "data": name, "data_options": {"size": 10, "jitter": True, **options}})
    return prepare(recipe, Runtime(root=str(root), device="cpu", workers=workers)).task


def read(task: Any, epoch: int = 0, step: int = 0) -> Rows:
    return list(task.epoch(epoch).begin(step))


def equal(one: Rows, other: Rows) -> bool:
    pairs = zip(one, other, strict=True)
    return all(torch.equal(a, b) for first, second in pairs for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", ["imagenet", "webdataset:{root}/shards", "folder:{root}/imagenet"])
def test_an_epoch_begins_anywhere_and_does_not_depend_on_the_workers(root: Path, name: str) -> None:
    more = {"stream": True} if name.startswith("folder") else {}
    alone, helped = (task_of(root, name.format(root=root), workers, **more) for workers in (0, 2))
    whole = read(alone, 1)
    assert len(whole) == alone.steps == (2 if "shards" in name else 4)
    assert equal(whole, read(helped, 1))
    assert equal(whole[1:], read(helped, 1, step=1))
    assert not equal(whole, read(alone, 2))
    pixels, labels, matrices = whole[0]
    assert pixels.shape == (6, 3, 10, 10)
    assert pixels.dtype == torch.uint8
    assert matrices.shape == (6, 3, 4)
    assert (pixels.float().mean((1, 2, 3)) // 60).tolist() == labels.tolist(), "bright as their labels"


@pytest.mark.parametrize(("count", "parts"), [(2, 1), (2, 3), (3, 2)])
@pytest.mark.parametrize("name", ["imagenet", "webdataset:{root}/shards"])
def test_ranks_share_each_batch_of_one_process(root: Path, name: str, count: int, parts: int) -> None:
    """Of a few tar files too: images are shared out, not files."""
    whole = read(task_of(root, name.format(root=root)))
    shares = []
    for rank in range(count):
        task = task_of(root, name.format(root=root))
        assert isinstance(task, SharedTask)
        task.share(rank, count, parts, lambda value: value)
        shares.append(read(task))
    for step, batch in enumerate(whole):
        for field, rows in enumerate(batch):
            own = [share[step][field].chunk(parts) for share in shares]
            together = torch.cat([own[rank][part] for part in range(parts) for rank in range(count)])
            assert torch.equal(together, rows)


def test_a_batch_that_cannot_be_shared_out_is_refused(root: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"A batch of 6 cannot be shared out .*a multiple of 4 \(2 ranks times 2 parts\)"
    ):
        task_of(root).share(0, 2, 2, lambda value: value)


class Means(nn.Module):
    """Logits that say how bright an image is."""

    def forward(self, x: Tensor) -> Tensor:
        bright = x.float().mean((1, 2, 3))[:, None]
        return torch.cat([-bright, bright, 0.3 - bright.square()], 1)


def test_ranks_evaluate_a_part_each(root: Path) -> None:
    expected = task_of(root).evaluate(Means())
    totals: list[Tensor] = []
    for rank in range(2):  # 9 images: one of them is read twice
        task = task_of(root)
        task.share(rank, 2, 1, lambda value: totals.append(value) or value)
        task.evaluate(Means())
    found = (totals[0] + totals[1]) / 9
    assert found[:2].tolist() == pytest.approx([expected["test_loss"], expected["test_accuracy"]])
    assert "test_top5_accuracy" not in expected, "of three classes"


def test_the_generators_of_the_training_are_left_alone(root: Path) -> None:
    before = torch.get_rng_state()
    read(task_of(root, workers=1))
    assert torch.equal(before, torch.get_rng_state())


def test_a_reader_serves_two_in_turn(root: Path) -> None:
    task = task_of(root, workers=1)
    whole = read(task)
    stream = task.epoch(0).begin(0)
    found = [next(stream), next(stream)]
    task.evaluate(Means())
    assert equal([*found, *stream], whole)
    assert torch.equal(first_batches(task, 0, 2)[0], torch.stack([whole[0][0], whole[1][0]]))


@pytest.mark.faults
def test_a_worker_that_is_killed_costs_nothing(root: Path) -> None:
    whole = read(task_of(root))
    task = task_of(root, workers=1)
    stream = task.epoch(0).begin(0)
    found = [next(stream)]
    for process in multiprocessing.active_children():
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
    assert equal([*found, *stream], whole)


def _train(root: Path, out: Path, *more: str) -> tuple[int, str]:
    words = [
        "train",
        "--network",
        "wrn-10-1",
        "--epochs",
        "1",
        "--device",
        "cpu",
        "--out",
        str(out),
        "--root",
        str(root),
    ]
    done = CliRunner().invoke(app, [*words, *more])
    return done.exit_code, " ".join(done.output.split())


def test_an_image_that_does_not_open_is_named(tmp_path: Path) -> None:
    broken = write_folders(tmp_path / "imagenet") / "train" / "n01" / "3.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    words = ["--data", "imagenet", "--batch", "6", "--set", "data.options.size=8", "--workers"]
    for workers in ("0", "1"):
        code, told = _train(tmp_path, tmp_path / workers, *words, workers)
        assert code == 1
        assert f"{broken} is not a readable image; replace it" in told
    broken.unlink()
    task = task_of(tmp_path)
    (broken.parent / "4.jpg").unlink()
    with pytest.raises(DataError, match=r"4\.jpg cannot be read \(No such file or directory\); put it back"):
        read(task)


def test_an_image_of_a_tar_file_that_does_not_open_is_named(tmp_path: Path, root: Path) -> None:
    members = {
        f"{i}.{kind}": encoded(0, i) if kind == "png" else b"%d" % (i % 2) for i in range(8) for kind in ("png", "cls")
    }
    write_tar(tmp_path / "train-0.tar", {**members, "5.png": b"no image"})
    write_tar(tmp_path / "val-0.tar", members)
    with pytest.raises(DataError, match=r"train-0\.tar: 5\.png is not a readable image; replace it"):
        read(task_of(root, f"webdataset:{tmp_path}"))


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (
            {"data_options": {"min_area": 50}},
            ConfigError,
            r"min_area is for images .*add --set data\.options\.stream=true",
        ),
        ({"data_options": {"stream": True, "worker": 3}}, ConfigError, "has no data option 'worker'"),
        ({"data_options": {"stream": True}, "pad": 4}, ConfigError, r"data\.pad is for images in memory"),
        (
            {"data_options": {"stream": True}, "task": "regress"},
            ConfigError,
            "images that stay on the disk are classified",
        ),
        (
            {"data_options": {"stream": True}, "validation": 24},
            ConfigError,
            "24 images cannot be split off 24 training",
        ),
        (
            {"data_options": {"stream": True}, "batch": 25},
            ConfigError,
            "A batch of 25 is larger than the training set of 24",
        ),
        ({"data": "imagenet", "data_options": {"stream": True}}, ConfigError, "imagenet has no data option 'stream'"),
    ],
)
def test_what_cannot_be_is_said_before_training(
    root: Path, values: dict[str, Any], error: type[Exception], message: str
) -> None:
    recipe = recipe_from({**_NETWORK, "data": f"folder:{root}/imagenet", **values})
    with pytest.raises(error, match=message):
        prepare(recipe, Runtime(root=str(root), device="cpu", workers=0))


def test_missing_and_empty_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"put the classes of ImageNet \(ILSVRC 2012\) into .*/imagenet/train and"):
        task_of(tmp_path)
    write_folders(tmp_path / "imagenet")
    (tmp_path / "imagenet" / "train" / "n03").mkdir()
    (tmp_path / "imagenet" / "val" / "n03").mkdir()
    with pytest.raises(DataError, match=r"the class folder .*n03 has no images"):
        task_of(tmp_path)


def test_a_share_of_the_training_images_is_held_out(root: Path) -> None:
    recipe = recipe_from({**_NETWORK, "data": "imagenet", "data_options": {"size": 8}, "validation": 6})
    task: Any = prepare(recipe, Runtime(root=str(root), device="cpu", workers=0)).task
    assert task.steps == 3
    assert 0 <= task.evaluate(Means())["test_accuracy"] <= 1


def test_a_finished_run_is_measured_and_exported(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    words = ["--data", "imagenet", "--batch", "6", "--set", "data.options.size=8", "--workers", "0"]
    code, told = _train(root, tmp_path / "run", *words)
    assert code == 0, told
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    done = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--data", "imagenet", "--root", str(root)])
    assert done.exit_code == 0, done.output
    assert f"test accuracy on imagenet: {result['test_accuracy']:.2%}".replace("%", " %") in done.output


def test_sets_in_memory_do_not_have_it() -> None:
    with pytest.raises(ConfigError, match="There is no image set 'imagenet'"):
        data.load("imagenet")
