"""`pt.shrink(latency=)`: channels go until a fake runtime, which counts weights, takes the time; bytes come afterwards."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import paretorch as pt
from paretorch.deploy.measure import stopwatch as stopwatch_module
from paretorch.errors import ConfigError
from paretorch.workflows.shrink import shrink_network
from tests.workflows.shrink.fake_stopwatch import Fake, time_of
from tests.workflows.shrink.networks import images, trained_convnet


@pytest.fixture(scope="module")
def convnet() -> nn.Module:
    return trained_convnet()


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch_module, "NetworkStopwatch", Fake)
    monkeypatch.setattr(Fake, "asked", 0)


def test_the_network_is_cut_and_answers_as_before(convnet: nn.Module) -> None:
    before = {name: value.clone() for name, value in convnet.state_dict().items()}
    found = shrink_network(convnet, images(), latency="3/4", steps=40)
    assert time_of(found.model) <= 0.75 * time_of(convnet)
    assert found.record["milliseconds"] == pytest.approx(time_of(found.model), abs=1e-3)
    assert found.record["dense_milliseconds"] == pytest.approx(time_of(convnet), abs=1e-3)
    assert not found.model.training
    assert all(torch.equal(before[name], value) for name, value in convnet.state_dict().items())
    x = images(1, seed=9)[0]
    agree = found.model(x).argmax(1) == copy.deepcopy(convnet).eval()(x).argmax(1)
    assert agree.float().mean() >= 0.7


def test_with_bytes_too_and_a_folder_that_goes_on(
    convnet: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"latency": "3/4", "budget": "2 kB", "steps": 12, "folder": tmp_path / "run"}
    with monkeypatch.context() as patch:
        patch.setattr("paretorch.workflows.shrink.network.post_train", _killed)
        with pytest.raises(KeyboardInterrupt):
            pt.shrink(convnet, images(), **options)
    asked = Fake.asked
    small = pt.shrink(convnet, images(), **options)
    assert Fake.asked == asked, "what is cut is not cut again"
    assert time_of(small) <= 0.75 * time_of(convnet)
    assert pt.save(small, tmp_path / "small.pare").total <= 2000
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["model.pare", "result.json", "shrink.json"]
    loaded = pt.load(tmp_path / "run" / "model.pare", into=copy.deepcopy(convnet)).eval()
    assert torch.equal(loaded(images(1)[0]), small(images(1)[0]))
    with pytest.raises(ConfigError, match="begun with another latency"):
        pt.shrink(convnet, images(), **{**options, "latency": "1/2"})


def _killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_wrong_options(convnet: nn.Module) -> None:
    with pytest.raises(ConfigError, match="steps=0 with latency=, which removes channels: give steps"):
        pt.shrink(convnet, images(), latency="1/2", steps=0)
    with pytest.raises(ConfigError, match="runtime='no such' is not known"):
        pt.shrink(convnet, images(), latency="1/2", runtime="no such")
    with pytest.raises(ConfigError, match='write it like "5 ms"'):
        pt.shrink(convnet, images(), latency="soon", steps=4)
    with pytest.raises(ConfigError, match="finds no channel that can be removed"):
        pt.shrink(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), images(), latency="1/2", steps=4)
