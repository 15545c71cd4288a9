"""`torchrun … pare train` with real gloo ranks: the same run as one process, resumable on another number of ranks."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from paretorch.cli.app import app
from paretorch.errors import ArtefactError, ConfigError, PareError
from paretorch.training import Runtime, shards, train
from paretorch.training.ranks import device_of_rank
from paretorch.training.recipe_values import recipe_from
from tests.meeting import both_ranks, free_ports
from tests.photos import write_folders

# Without batch norm, whose small variances magnify the last bit of a sum until it shows.
_NETWORK = """
from torch import nn


def build(channels=1, classes=10):
    layers = [nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, classes))
"""
_SMALL = [
    "--data",
    "digits",
    "--batch",
    "240",
    "--optimizer",
    "adam",
    "--lr",
    "0.01",
    "--epochs",
    "6",
    "--finetune",
    "1",
]
_SMALL += ["--sparsity", "0.5", "--bits", "3"]
_DENSE = ["--network", "digits-cnn", "--set", 'network_options={"width": 4}', "--data", "digits"]
_DENSE += ["--batch", "480", "--lr", "0.001", "--epochs", "2"]


def start(ranks: int, out: Path, words: list[str], *more: str) -> subprocess.Popen[str]:
    """The run in `out`, by one plain process or by so many ranks."""
    command = [sys.executable, "-m", "paretorch.cli"]
    if ranks > 1:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "-m", "paretorch.cli"]
        command[3:3] = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = ["train", *words, "--device", "cpu", "--out", str(out), *more]
    return subprocess.Popen(
        [*command, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )


def run(ranks: int, out: Path, words: list[str], *more: str) -> str:
    """What the run tells. One rank is run in this process, which has imported all of it."""
    if ranks == 1:
        done = CliRunner().invoke(app, ["train", *words, "--device", "cpu", "--out", str(out), *more])
        assert done.exit_code == 0, done.output
        return done.output
    process = start(ranks, out, words, *more)
    told, _ = process.communicate()
    assert process.returncode == 0, told
    return told


def rows(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in found]


def assert_alike(one: Path, other: Path, tolerance: float = 2e-3) -> None:
    """The same losses and rates, almost the same decisions, and a file of the same size."""
    for row, found in zip(rows(one), rows(other), strict=True):
        assert row.keys() == found.keys()
        for name in set(row) & {"loss", "test_loss", "sparsity", "bits"}:
            assert row[name] == pytest.approx(found[name], rel=tolerance, abs=tolerance), (row, found)
    states = [weights(folder) for folder in (one, other)]
    for name, weight in states[0].items():
        assert ((weight == 0) != (states[1][name] == 0)).float().mean() <= 0.02, name
        assert ((weight - states[1][name]).abs() > 0.05).float().mean() <= 0.02, name
    sizes = [(folder / "model.pare").stat().st_size for folder in (one, other)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The network in a run's file."""
    from paretorch import load

    made: dict[str, Any] = {}
    exec((folder.parent / "mine.py").read_text(), made)
    network = made["build"]()
    load(folder / "model.pare", into=network)
    state: dict[str, torch.Tensor] = network.state_dict()
    return state


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process, and the network's file beside it."""
    made = tmp_path_factory.mktemp("ranks")
    write_network(made)
    run(1, made / "one", small(made))
    return made


def write_network(folder: Path) -> None:
    (folder / "mine.py").write_text(_NETWORK)


def photos(folder: Path) -> list[str]:
    """A run on images that worker processes read, of which 9 are to be evaluated by two ranks."""
    if not (folder / "imagenet").exists():
        write_folders(folder / "imagenet")
    words = ["--network", f"{folder / 'mine.py'}:build", "--network-options", "channels=3", "--data", "imagenet"]
    words += [
        "--root",
        str(folder),
        "--set",
        "data.options.size=12",
        "--set",
        "data.options.jitter=true",
        "--workers",
        "1",
    ]
    return [*words, "--batch", "12", "--epochs", "3", "--sparsity", "0.5", "--finetune", "1"]


def small(folder: Path) -> list[str]:
    return ["--network", f"{folder / 'mine.py'}:build", *_SMALL]


@pytest.fixture(scope="module")
def two(folder: Path) -> dict[str, tuple[int, str]]:
    """Exit code and words of runs of two ranks in `folder`, by their names: one pair of processes takes them all in turn."""
    runs = {
        "ddp": small(folder),
        "--shard": [*small(folder), "--shard"],
        "norms": _DENSE,
        "odd": [*small(folder), "--batch", "241"],
        "again": [*small(folder), "--out", str(folder / "ddp")],
        "other": [*small(folder), "--lr", "0.02", "--resume", "--out", str(folder / "ddp")],
        "photos": photos(folder),
        "photos --shard": [*photos(folder), "--shard"],
    }
    # The last --out is the one that counts.
    commands = [["train", "--out", str(folder / name), *words, "--device", "cpu"] for name, words in runs.items()]
    told = folder / "told"
    told.mkdir()
    both_ranks("tests.training.cli_rank", told, json.dumps(commands), json.dumps(free_ports(len(runs))))
    found = {}
    for number, name in enumerate(runs):
        ends = [json.loads((told / f"{number}-{rank}.json").read_text()) for rank in range(2)]
        found[name] = (max(code for code, _ in ends), "".join(words for _, words in ends))
    return found


@pytest.mark.timeout(240)
@pytest.mark.parametrize("how", ["ddp", "--shard"])
def test_two_ranks_take_the_steps_of_one_process(folder: Path, two: dict[str, tuple[int, str]], how: str) -> None:
    code, told = two[how]
    assert code == 0, told
    assert told.count("finetune 7/7") == 1, "one rank writes"
    assert_alike(folder / "one", folder / how)
    assert not (folder / how / "checkpoint.pt").exists()


@pytest.mark.faults
@pytest.mark.timeout(240)
def test_a_shared_run_is_killed_and_goes_on_with_one_rank_and_with_three(folder: Path) -> None:
    out = folder / "killed"
    process = start(2, out, small(folder), "--checkpoint-steps", "1", "--shard")
    kill_a_rank_after(process, out / "checkpoint.ranks" / "4")
    saved = shards.load(shards.find(out))
    assert (saved.epoch, saved.step) > (0, 0)
    one = start(1, out, small(folder), "--checkpoint-steps", "1", "--resume")
    while not (out / "checkpoint.pt").exists() and one.poll() is None:
        time.sleep(0.01)
    one.send_signal(signal.SIGTERM)  # keeps its last step
    told, _ = one.communicate()
    assert not shards.exists(out), told
    run(3, out, small(folder), "--resume", "--shard")
    assert_alike(folder / "one", out)


def kill_a_rank_after(process: subprocess.Popen[str], checkpoint: Path) -> None:
    """Kill -9 one rank once there is this checkpoint; torchrun ends the others."""
    while not checkpoint.exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    process.communicate()
    assert process.returncode not in (0, None)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("how", [pytest.param("ddp", marks=pytest.mark.faults), "--shard"])
def test_equally_many_ranks_continue_bit_for_bit(folder: Path, two: dict[str, tuple[int, str]], how: str) -> None:
    assert two[how][0] == 0
    out, whole = folder / f"again{how}", folder / how
    shard = [] if how == "ddp" else [how]
    kill_a_rank_after(start(2, out, small(folder), "--checkpoint-steps", "1", *shard), out / "checkpoint.ranks" / "3")
    run(2, out, small(folder), "--resume", *shard)
    assert rows(out) == rows(whole)
    assert (out / "model.pare").read_bytes() == (whole / "model.pare").read_bytes()


@pytest.mark.timeout(240)
def test_batch_norms_see_the_batch_of_all_ranks(folder: Path, two: dict[str, tuple[int, str]], tmp_path: Path) -> None:
    run(1, tmp_path / "one", _DENSE)
    assert two["norms"][0] == 0, two["norms"][1]
    for row, found in zip(rows(tmp_path / "one"), rows(folder / "norms"), strict=True):
        assert found["loss"] == pytest.approx(row["loss"], rel=1e-4)
        assert found["test_loss"] == pytest.approx(row["test_loss"], rel=1e-4)


@pytest.mark.timeout(240)
def test_a_batch_in_parts_is_the_same_batch(folder: Path) -> None:
    run(1, folder / "parts", small(folder), "--accumulate", "4")
    assert_alike(folder / "one", folder / "parts")


@pytest.mark.timeout(240)
def test_ranks_read_images_from_the_disk(folder: Path, two: dict[str, tuple[int, str]]) -> None:
    run(1, folder / "photos-one", photos(folder))
    for how in ("photos", "photos --shard"):
        assert two[how][0] == 0, two[how][1]
        for row, found in zip(rows(folder / "photos-one"), rows(folder / how), strict=True):
            for name in set(row) & {"loss", "test_loss", "sparsity"}:
                assert row[name] == pytest.approx(found[name], rel=1e-3), (row, found)


@pytest.mark.faults
@pytest.mark.timeout(240)
def test_ranks_that_read_images_continue_in_the_middle_of_an_epoch(folder: Path) -> None:
    out = folder / "photos-killed"
    words = [*photos(folder), "--checkpoint-steps", "1"]
    kill_a_rank_after(start(2, out, words), out / "checkpoint.ranks" / "3")
    assert shards.load(shards.find(out)).step > 0
    run(2, out, words, "--resume")
    run(2, folder / "photos-whole", words)
    assert rows(out) == rows(folder / "photos-whole")
    assert (out / "model.pare").read_bytes() == (folder / "photos-whole" / "model.pare").read_bytes()


@pytest.mark.timeout(120)
def test_what_ranks_cannot_do_is_said_once(folder: Path, two: dict[str, tuple[int, str]]) -> None:
    code, told = two["odd"]
    assert code == 2
    assert (
        told.count("A batch of 241 cannot be shared out equally: make it a multiple of 2 (2 ranks times 1 parts)") == 1
    )
    assert not (folder / "odd").exists()


def test_another_configuration_in_the_folder_is_said_once(folder: Path, two: dict[str, tuple[int, str]]) -> None:
    for name, words in (
        ("again", "already holds a run; continue it with --resume or choose another --out"),
        ("other", "lr (there 0.01, now 0.02)"),
    ):
        code, told = two[name]
        assert code == 2
        assert told.count(words) == 1, told
    assert (folder / "ddp" / "model.pare").exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_meets_nobody_says_where(rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one died at its start, or nothing answers at its address."""
    (port,) = free_ports(1)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in place.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr("paretorch.training.ranks._MEET", 1.0)
    with pytest.raises(PareError, match=rf"The 2 ranks did not meet at 127\.0\.0\.1:{port}: "):
        train(RECIPE, tmp_path / "run", Runtime(device="cpu"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("mps", "Ranks train on CPUs and on NVIDIA GPUs, not on mps: use --device cpu"),
        ("cuda:1", "Each rank of a machine has a GPU of its own, and --device cuda:1 is one GPU: use --device cuda"),
    ],
)
def test_devices_that_ranks_cannot_have_are_named(
    device: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=message):
        train(RECIPE, tmp_path / "run", Runtime(device=device))


def test_ranks_on_gpus_have_one_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert [device_of_rank(name) for name in ("auto", "cuda", "cpu")] == ["cuda:1", "cuda:1", "cpu"]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(
        ConfigError, match="There are more ranks than the 2 GPUs of this machine: use --nproc-per-node 2"
    ):
        device_of_rank("auto")


RECIPE = recipe_from({"network": "digits-cnn", "data.name": "digits"})


def test_launchers_that_are_none_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="start them with torchrun"):
        train(RECIPE, tmp_path / "run", Runtime(shard=True))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="WORLD_SIZE is 2 and RANK is not set: start the ranks with torchrun"):
        train(RECIPE, tmp_path / "run", Runtime(device="cpu"))
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(ConfigError, match="WORLD_SIZE='many' is no number of ranks"):
        train(RECIPE, tmp_path / "run", Runtime(device="cpu"))
    assert not (tmp_path / "run").exists()


def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    folder: Path, two: dict[str, tuple[int, str]], tmp_path: Path
) -> None:
    assert two["ddp"][0] == 0
    source = folder / "ddp" / "checkpoint.ranks"
    numbers = sorted(int(path.name) for path in source.iterdir())
    shutil.copytree(source, tmp_path / "checkpoint.ranks")
    assert len(numbers) == 2
    newest = tmp_path / "checkpoint.ranks" / str(numbers[1])
    part = newest / "__0_0.distcp"
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    with pytest.warns(UserWarning, match=f"{numbers[1]} is damaged; continuing from the previous checkpoint"):
        assert shards.find(tmp_path).name == str(numbers[0])
    index = tmp_path / "checkpoint.ranks" / str(numbers[0]) / ".metadata"
    hostile = b"cos\nsystem\n(S'echo'\ntR."
    index.write_bytes(hostile)
    state = json.loads((index.parent / "state.json").read_text())
    state["sums"][".metadata"] = hashlib.sha256(hostile).hexdigest()
    (index.parent / "state.json").write_text(json.dumps(state))
    with pytest.raises(ArtefactError, match="holds no undamaged checkpoint"):
        shards.find(tmp_path)
