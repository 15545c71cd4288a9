"""Checkpoints of ranks that are written while training goes on; one rank is enough to see it."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_saver

from paretorch.errors import PareError, PareWarning
from paretorch.training import shards
from paretorch.training.checkpoint import Checkpoint, random_state
from paretorch.training.ranks import Ranks
from paretorch.training.writer import Writer


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield Writer(tmp_path / "run", Ranks())
    dist.destroy_process_group()


def moment(weight: torch.Tensor, step: int) -> Checkpoint:
    return Checkpoint(
        recipe={"seed": 0},
        model={"weight": weight},
        optimizer={"state": {}, "param_groups": [{"lr": 0.1}]},
        plan=None,
        epoch=0,
        step=step,
        offset=0,
        record=torch.zeros(step, 2),
        random=random_state(torch.device("cpu")),
    )


def save_and_raise(writer: Writer, error: BaseException) -> None:
    with writer:
        writer.save(moment(torch.ones(2), 1))
        raise error


class Gate:
    """Lets `save` of torch wait until it is opened, and fail if it is broken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.error: Exception | None = None
        real = state_dict_saver.save

        def save(*args: object, **options: object) -> object:
            assert self.open.wait(60)
            if self.error is not None:
                raise self.error
            return real(*args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(state_dict_saver, "save", save)


def test_training_goes_on_while_a_checkpoint_is_written(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, weight, run = Gate(monkeypatch), torch.ones(3), tmp_path / "run"
    (run / "checkpoint.ranks").mkdir(parents=True)
    (run / "checkpoint.pt").write_bytes(b"of one process")
    with writer:
        writer.save(moment(weight, 1))
        weight.fill_(9.0)  # the next step
        assert not shards.exists(run)
        assert (run / "checkpoint.pt").exists(), "the one before stays until this one is there"
        gate.open.set()
    stored = shards.load(shards.find(run))
    assert stored.step == 1
    assert stored.model["weight"].tolist() == [1.0, 1.0, 1.0]
    assert stored.optimizer["param_groups"] == [{"lr": 0.1}]
    assert not (run / "checkpoint.pt").exists()


def test_one_is_written_at_a_time_and_two_are_kept(writer: Writer, tmp_path: Path) -> None:
    with writer:
        for step in range(1, 5):
            writer.save(moment(torch.full((2,), float(step)), step))
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoint.ranks").iterdir()) == ["3", "4"]
    assert shards.load(shards.find(tmp_path / "run")).model["weight"].tolist() == [4.0, 4.0]


def test_a_failure_is_raised_at_the_next_checkpoint_and_not_twice(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    with writer:
        gate.open.set()
        writer.save(moment(torch.ones(2), 1))
        writer.finish()
        gate.error = PareError("Cannot write it (no space left on device)")
        writer.save(moment(torch.ones(2), 2))
        with pytest.raises(PareError, match="no space left"):
            writer.save(moment(torch.ones(2), 3))
        gate.error = None
    assert shards.load(shards.find(tmp_path / "run")).step == 1, "the one before is intact"


def test_a_failure_is_raised_at_the_end(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    gate.open.set()
    gate.error = PareError("Cannot write it (no space left on device)")
    with pytest.raises(PareError, match="no space left"), writer:
        writer.save(moment(torch.ones(2), 1))


def test_a_failure_does_not_hide_that_of_training(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    gate.open.set()
    gate.error = PareError("Cannot write it (no space left on device)")
    with pytest.warns(PareWarning, match="no space left"), pytest.raises(PareError, match="The loss is nan"):
        save_and_raise(writer, PareError("The loss is nan"))


def test_a_run_that_is_stopped_keeps_its_last_step(writer: Writer, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        save_and_raise(writer, KeyboardInterrupt())
    assert shards.load(shards.find(tmp_path / "run")).step == 1
