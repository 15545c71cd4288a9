"""`pare check` finds every damage of every file, says what can be saved, and changes nothing."""

import contextlib
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from paretorch.cli.app import app
from paretorch.errors import ConfigError
from paretorch.support.checked_files import write_tensors
from paretorch.workflows.check import Checked, check
from tests.faults.inject import in_child
from tests.faults.scenes import SCENES


def _made(name: str, folder: Path) -> Path:
    """The files of a whole job, made in a process of its own."""

    def work() -> None:
        torch.set_num_threads(1)
        SCENES[name].prepare(folder)
        with contextlib.suppress(SystemExit):
            SCENES[name].begin(folder)

    assert in_child(work) == 0
    assert list(folder.iterdir())
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _made("train", tmp_path_factory.mktemp("run")) / "run"


@pytest.fixture(scope="module")
def tickets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _made("tickets", tmp_path_factory.mktemp("tickets")) / "tickets"


@pytest.fixture(scope="module")
def tune(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _made("tune", tmp_path_factory.mktemp("tune")) / "tune"


@pytest.fixture(scope="module")
def shrink(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _made("shrink", tmp_path_factory.mktemp("shrink")) / "shrink"


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


def _digests(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _flip(path: Path, part: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[int(part * len(content))] ^= 4
    path.write_bytes(content)


def _damaged(found: Checked) -> set[str]:
    return {one.name for one in found.findings if one.state == "damaged"}


@pytest.mark.parametrize("name", ["run", "tickets", "tune", "shrink"])
def test_what_is_whole_is_found_whole_and_is_not_touched(name: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(name)
    before = _digests(folder)
    found = check(folder)
    assert found.is_whole, list(found.lines())
    assert len(found.findings) >= 3
    assert _digests(folder) == before


def test_the_command_prints_lines_and_json_and_has_an_exit_code(copied: Path) -> None:
    whole = CliRunner().invoke(app, ["check", str(copied)])
    assert whole.exit_code == 0, whole.output
    assert "Everything is whole." in whole.output
    _flip(copied / "checkpoint.pt")
    damaged = CliRunner().invoke(app, ["check", str(copied), "--json"])
    assert damaged.exit_code == 1
    record = json.loads(damaged.output)
    assert not record["whole"]
    assert {"name": "checkpoint.pt", "state": "damaged", "words": "is damaged: its checksum does not match"} in [
        {**row, "words": row["words"].removeprefix("checkpoint.pt ")} for row in record["findings"]
    ]


def test_paths_that_are_nothing_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", tmp_path / "missing.pare", tmp_path / "missing.pt"):
        with pytest.raises(ConfigError):
            check(path)


@pytest.mark.parametrize("part", [0.01, 0.2, 0.5, 0.8, 0.999])
def test_a_flipped_bit_of_a_checkpoint_is_found_and_the_older_one_named(copied: Path, part: float) -> None:
    _flip(copied / "checkpoint.pt", part)
    (copied / "result.json").unlink()
    found = check(copied)
    assert _damaged(found) == {"checkpoint.pt"}
    assert "goes on from checkpoint.previous.pt after epoch" in found.advice[0]


def test_of_two_damaged_checkpoints_the_network_is_left(copied: Path) -> None:
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        _flip(copied / name)
    (copied / "result.json").unlink()
    found = check(copied)
    assert "The network can be loaded: pt.load(" in found.advice[0]
    (copied / "model.pare").unlink()
    assert "Remove checkpoint.pt and checkpoint.previous.pt, and pare train" in check(copied).advice[0]


def _without_rows(folder: Path) -> None:
    (folder / "metrics.jsonl").write_bytes((folder / "metrics.jsonl").read_bytes()[:100])


def _other_order(folder: Path) -> None:
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(reversed(lines)))


def _other_shape(folder: Path) -> None:
    content = torch.load(folder / "checkpoint.pt", weights_only=True)
    name = next(name for name, one in content["model"].items() if one.dim() == 4)
    content["model"][name] = torch.zeros(3, 3)
    write_tensors(folder / "checkpoint.pt", content)


def _other_moment(folder: Path) -> None:
    content = torch.load(folder / "checkpoint.pt", weights_only=True)
    state = next(iter(content["optimizer"]["state"].values()))
    state["momentum_buffer"] = torch.zeros(77, 5)
    write_tensors(folder / "checkpoint.pt", content)


def _other_recipe(folder: Path) -> None:
    content = torch.load(folder / "checkpoint.pt", weights_only=True)
    content["recipe"]["seed"] = 9
    write_tensors(folder / "checkpoint.pt", content)


def _other_result(folder: Path) -> None:
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "bytes": 7}))


def _flipped_artefact(folder: Path) -> None:
    _flip(folder / "model.pare", 0.9)


def _no_configuration(folder: Path) -> None:
    (folder / "config.json").unlink()


DAMAGES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "rows are gone": (_without_rows, "checkpoint.pt", "rows that it has not now"),
    "rows in another order": (_other_order, "metrics.jsonl", "not in order"),
    "a tensor of another shape": (_other_shape, "checkpoint.pt", r"is \(3, 3\), and \(2, 1, 3, 3\)|is \(3, 3\), and"),
    "a moment of another shape": (_other_moment, "checkpoint.pt", "that of no weight"),
    "another recipe": (_other_recipe, "checkpoint.pt", "another recipe"),
    "another result": (_other_result, "result.json", "has 7 bytes"),
    "a flipped bit of the artefact": (_flipped_artefact, "model.pare", "."),
    "no configuration": (_no_configuration, "config.json", "missing"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damages_of_a_run_are_found(copied: Path, name: str) -> None:
    damage, where, words = DAMAGES[name]
    damage(copied)
    found = check(copied)
    rows = [one for one in found.findings if one.state == "damaged" and one.name == where]
    assert rows, list(found.lines())
    assert any(re.search(words, one.words) for one in rows), rows
    assert found.advice


def test_another_environment_is_a_note(copied: Path) -> None:
    stored = json.loads((copied / "config.json").read_text())
    stored["environment"]["torch"] = "1.0"
    (copied / "config.json").write_text(json.dumps(stored))
    found = check(copied)
    assert found.is_whole
    assert any(one.state == "note" and "torch (there '1.0'" in one.words for one in found.findings)


def _tensor_files(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.rglob("*.pt"))


@pytest.mark.parametrize("name", ["tickets", "tune", "shrink"])
def test_every_file_of_other_folders_is_looked_at(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    folder = request.getfixturevalue(name)
    told = {
        "tickets": ("rounds.jsonl", "recipe.json", "search.json", "dense.json"),
        "tune": (),
        "shrink": ("shrink.json",),
    }
    files = [path for path in sorted(folder.rglob("*")) if path.suffix == ".pt" or path.name in told[name]]
    files += [*sorted(folder.glob("*.journal")), *sorted(folder.glob("model.pare"))]
    assert files
    for number, path in enumerate(files):
        damaged = tmp_path / str(number)
        shutil.copytree(folder, damaged)
        target = damaged / path.relative_to(folder)
        if path.suffix in (".json", ".jsonl", ".journal"):
            target.write_bytes(b"[" + target.read_bytes())
        else:
            _flip(target)
        found = check(damaged)
        assert not found.is_whole, (path, list(found.lines()))
        assert found.advice


def test_a_storage_of_sqlite(tmp_path: Path) -> None:
    from paretorch.workflows import tuning

    tuning.search(lambda a, e, beat: a, [1.0, 2.0], [1.0], trials=2, storage=f"sqlite:///{tmp_path}/s.db")
    found = check(tmp_path / "s.db")
    assert found.is_whole, list(found.lines())
    assert "2 complete" in found.findings[-1].words
    content = bytearray((tmp_path / "s.db").read_bytes())
    content[4096 : 4096 + 200] = b"\xff" * 200
    (tmp_path / "s.db").write_bytes(content)
    assert not check(tmp_path / "s.db").is_whole


def test_a_journal_with_a_last_line_that_was_cut_is_left_as_it_is(tune: Path, tmp_path: Path) -> None:
    path = tmp_path / "trials.journal"
    path.write_bytes((tune / "trials.journal").read_bytes() + b'{"op_code"')
    before = path.read_bytes()
    found = check(path)
    assert found.is_whole
    assert any("cut" in one.words for one in found.findings)
    assert path.read_bytes() == before


def test_results_of_a_study(tmp_path: Path) -> None:
    source = Path(__file__).parents[3] / "results" / "dense-resnet20"
    shutil.copytree(source, tmp_path / "dense-resnet20")
    found = check(tmp_path / "dense-resnet20")
    assert found.is_whole, list(found.lines())
    (tmp_path / "dense-resnet20" / "run-seed1.json").write_text('{"run": "run-seed1"}')
    assert _damaged(check(tmp_path / "dense-resnet20")) == {"run-seed1.json"}


def test_code_that_a_folder_names_is_not_run(copied: Path, tmp_path: Path) -> None:
    (tmp_path / "never_run.py").write_text("raise SystemExit(9)\n")
    stored = json.loads((copied / "config.json").read_text())
    stored["recipe"]["network"] = f"{tmp_path}/never_run.py:build"
    (copied / "config.json").write_text(json.dumps(stored))
    check(copied)
    assert "never_run" not in sys.modules
