"""Workers on one folder: each unit is in one hand at a time, and the dead leave nothing locked or lost."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paretorch.errors import ArtefactError, ConfigError
from paretorch.training import Runtime
from paretorch.training.recipe_values import changed, recipe_from
from paretorch.workflows.tickets import CS, IMP, Bench, Search, Storage, Supermask, collect, work

RECIPE = recipe_from(
    {
        "network": "digits-cnn",
        "network_options": {"width": 2},
        "data.name": "digits",
        "epochs": 1,
        "data.batch": 128,
        "optimizer.lr": 0.05,
        "data.validation": 200,
    }
)
CPU = Runtime(device="cpu")
SEARCHES = [Search(CS(init=0.02), 2), Search(IMP(), 2), Search(Supermask(), 1)]


def pare(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "paretorch.cli", "tickets", "--storage", str(folder), "--device", "cpu", *words],
        stdout=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one worker makes of the searches."""
    folder = tmp_path_factory.mktemp("alone")
    work(Storage.join(folder, RECIPE, SEARCHES), CPU)
    return folder


def rows_of(folder: Path) -> list[dict[str, object]]:
    result = collect(Storage.open(folder))
    return [*result.dense, *result.tickets]


def test_one_worker_does_everything(alone: Path) -> None:
    storage = Storage.open(alone)
    names = ["dense-seed0", "cs-init0.02-seed0", "imp-rate0.2-seed0", "supermask-init0-seed0"]
    assert [unit.name for unit in storage.units()] == names
    assert all(unit.is_done() for unit in storage.units())
    assert storage.epochs() == (9, 9)
    assert [len(unit.rows()) for unit in storage.units()] == [1, 2, 2, 1]
    assert all(0 < row["test_accuracy"] <= 1 for row in rows_of(alone))
    assert set(rows_of(alone)[1]["layers"]) == {f"features.{i}.weight" for i in (0, 3, 6, 10, 13, 16)}  # type: ignore[arg-type]


def test_a_unit_is_in_one_hand_at_a_time(tmp_path: Path) -> None:
    storage = Storage.join(tmp_path, RECIPE, SEARCHES)
    unit, other = storage.units()[:2]
    with storage.claim(unit) as first, storage.claim(unit) as second, storage.claim(other) as third:
        assert first is not None
        assert second is None
        assert third is not None
    with storage.claim(unit) as again:
        assert again is not None
        assert again.taken_from == ""


@pytest.mark.timeout(120)
def test_the_unit_of_a_killed_worker_is_free_at_once(tmp_path: Path) -> None:
    storage = Storage.join(tmp_path, RECIPE, SEARCHES)
    unit = storage.units()[1]
    code = (
        "import sys, time; from pathlib import Path; from paretorch.workflows.tickets import Storage\n"
        "storage = Storage.open(Path(sys.argv[1])); claim = storage.claim(storage.units()[1]); print(claim.__enter__() is not None, flush=True)\n"
        "time.sleep(600)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        with storage.claim(unit) as mine:
            assert mine is None
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()  # type: ignore[union-attr]
    with storage.claim(unit) as mine:
        assert mine is not None
        assert mine.taken_from.endswith(f"process {holder.pid}")


@pytest.mark.timeout(240)
def test_two_workers_one_of_them_killed_end_where_one_does(alone: Path, tmp_path: Path) -> None:
    storage = Storage.join(tmp_path, RECIPE, SEARCHES)
    first, second = pare(tmp_path), pare(tmp_path)
    while not any(unit.rows() for unit in storage.units()) and first.poll() is None:
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    assert second.wait() == 0
    assert rows_of(tmp_path) == rows_of(alone)
    assert (tmp_path / "tickets.jsonl").read_text().count("\n") == 6


def test_what_joins_must_have_the_same_recipe_and_the_same_search(alone: Path) -> None:
    before = rows_of(alone)
    with pytest.raises(ConfigError, match=r"lr \(there 0.05, now 0.2\)"):
        Storage.join(alone, changed(RECIPE, {"optimizer.lr": 0.2}), [])
    with pytest.raises(ConfigError, match=r"rounds \(there 2, now 3\)"):
        Storage.join(alone, RECIPE, [Search(CS(init=0.02), 3)])
    with pytest.raises(ConfigError, match=r"penalty \(there 1e-08, now 0.1\)"):
        Storage.join(alone, RECIPE, [Search(CS(init=0.02, penalty=0.1), 2)])
    assert rows_of(alone) == before


def test_a_search_that_fails_leaves_the_others_alone(tmp_path: Path) -> None:
    storage = Storage.join(tmp_path, RECIPE, [Search(CS(), 1), Search(Supermask(), 1)])
    (tmp_path / "cs-init0-seed0" / "carry.pt").write_bytes(b"nonsense")
    told: list[str] = []
    with pytest.raises(ArtefactError, match="damaged"):
        work(storage, CPU, told.append)
    done = {unit.name: unit.is_done() for unit in storage.units()}
    assert done == {"dense-seed0": True, "cs-init0-seed0": False, "supermask-init0-seed0": True}
    assert any(line.startswith("cs-init0-seed0: failed") for line in told)


def test_folders_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no ticket search"):
        Storage.open(tmp_path)
    (tmp_path / "recipe.json").write_text("{")
    with pytest.raises(ArtefactError, match="damaged"):
        Storage.open(tmp_path)


def test_tickets_are_never_chosen_by_the_test_set() -> None:
    with pytest.raises(ConfigError, match="never by the test set"):
        Bench.of(changed(RECIPE, {"data.validation": 0}), CPU)
    with pytest.raises(ConfigError, match="decides the sparsity itself"):
        Bench.of(changed(RECIPE, {"compression.sparsity": 0.5}), CPU)


def test_what_is_not_classified_has_no_tickets() -> None:
    recipe = recipe_from(
        {"network": "shortest-paths-cnn", "data.name": "shortest-paths", "data.validation": 4, "data.batch": 2}
    )
    small = changed(recipe, {"data.options": {"count": 8, "test_count": 2, "size": 8, "limit": 3}})
    with pytest.raises(ConfigError, match="compared by accuracy"):
        Bench.of(small, CPU)


def test_the_record_of_a_search_is_plain_json(alone: Path) -> None:
    record = json.loads((alone / "cs-init0.02-seed0" / "search.json").read_text())
    assert record["options"]["init"] == 0.02
    assert record["rewind"] is False
