"""A shrink that is killed goes on in its folder, and ends as if it had not been; other arguments are refused there."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import paretorch as pt
from paretorch.errors import ArtefactError, ConfigError, DataError, PareError
from paretorch.training.files import alone_in
from paretorch.workflows.shrink import folder as folders
from paretorch.workflows.shrink import shrink_network
from tests.workflows.shrink.networks import images, trained_convnet

_STEPS = 30
_SCRIPT = f"""
import sys, time
from paretorch.workflows.shrink import folder, shrink_network, tuning
from tests.workflows.shrink.networks import images, trained_convnet
folder.SECONDS = 0.0
train = tuning.Tuner._train
tuning.Tuner._train = lambda *given: (time.sleep(0.05), train(*given))
shrink_network(trained_convnet(), images(), budget=2500, steps={_STEPS}, folder=sys.argv[1])
"""


def _killed(path: Path) -> None:
    """Begin in another process, and kill it in the middle of training."""
    process = subprocess.Popen([sys.executable, "-c", _SCRIPT, str(path)])
    try:
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline:
            assert process.poll() is None, "the process ended before it could be killed"
            try:
                if torch.load(path / "checkpoint.pt", weights_only=True).get("tuner", {}).get("done", 0) >= 5:
                    break
            except FileNotFoundError:
                pass
            time.sleep(0.05)
        else:
            pytest.fail("no checkpoint of training was written")
    finally:
        process.kill()
        process.wait()


def test_a_killed_shrink_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = shrink_network(trained_convnet(), images(), budget=2500, steps=_STEPS)
    _killed(tmp_path / "run")
    done = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["tuner"]["done"]
    assert 5 <= done < _STEPS
    resumed = shrink_network(trained_convnet(), images(), budget=2500, steps=_STEPS, folder=tmp_path / "run")
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    assert resumed.record["bytes"] == pytest.approx(whole.record["bytes"], abs=8)
    assert resumed.record["rate"] == whole.record["rate"]


def test_a_finished_folder_gives_its_result_again(tmp_path: Path) -> None:
    model = trained_convnet()
    first = shrink_network(model, images(), budget=2500, steps=3, folder=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"shrink.json", "result.json", "model.pare"}
    assert (tmp_path / "model.pare").stat().st_size == first.record["bytes"]
    again = shrink_network(model, [], budget=2500, steps=3, folder=tmp_path)  # no batch is needed any more
    assert again.record == first.record == json.loads((tmp_path / "result.json").read_text())
    assert all(torch.equal(value, first.model.state_dict()[name]) for name, value in again.model.state_dict().items())


def test_other_arguments_are_refused_in_the_same_folder(tmp_path: Path) -> None:
    model = trained_convnet()
    pt.shrink(model, images(), budget=2500, steps=0, folder=tmp_path)
    with pytest.raises(ConfigError, match=r"another budget \(there 2500, now 2600\)"):
        pt.shrink(model, images(), budget=2600, steps=0, folder=tmp_path)
    with pytest.raises(ConfigError, match="another steps"):
        pt.shrink(model, images(), budget=2500, steps=1, folder=tmp_path)
    with torch.no_grad():
        next(model.parameters())[0] += 1
    with pytest.raises(ConfigError, match="another network"):
        pt.shrink(model, images(), budget=2500, steps=0, folder=tmp_path)


def test_wrong_batches_leave_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no batch"):
        pt.shrink(trained_convnet(), [], budget=2500, steps=0, folder=tmp_path)
    assert not list(tmp_path.iterdir())
    pt.shrink(trained_convnet(), images(), budget=2600, steps=0, folder=tmp_path)


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    with alone_in(tmp_path), pytest.raises(PareError, match="Another process"):
        pt.shrink(trained_convnet(), images(), budget=2500, steps=0, folder=tmp_path)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(b"of a run")
    with pytest.raises(ConfigError, match="holds something else"):
        pt.shrink(trained_convnet(), images(), budget=2500, steps=0, folder=tmp_path)
    assert (tmp_path / "checkpoint.pt").read_bytes() == b"of a run"


@pytest.mark.parametrize("content", [b"torn", b""])
def test_a_torn_checkpoint_is_named(tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("paretorch.workflows.shrink.tuning.Tuner.search", stop)
    with pytest.raises(KeyboardInterrupt):
        pt.shrink(trained_convnet(), images(), budget=2500, steps=2, folder=tmp_path)
    monkeypatch.undo()
    assert folders.SECONDS > 0
    (tmp_path / "checkpoint.pt").write_bytes(content)
    with pytest.raises(ArtefactError, match="not a readable checkpoint"):
        pt.shrink(trained_convnet(), images(), budget=2500, steps=2, folder=tmp_path)
