"""Latency: several rounds in a process of its own, or a note that it was not."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor, nn

from paretorch.deploy import Latency, measure_latency
from paretorch.deploy.measure import latency as latency_module
from paretorch.errors import ConfigError
from paretorch.report import report


class Stubborn(nn.Module):
    """Branches on its data, so that torch.export refuses it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if bool(x.sum() > 0) else x


def test_latency_has_a_spread_and_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency_module, "find_spec", lambda name: None)
    model = Stubborn().train()
    (found,) = measure_latency(model, torch.randn(3, 4), rounds=3, seconds=0.002)
    assert isinstance(found, Latency)
    assert 0 < found.low_ms <= found.median_ms <= found.high_ms
    assert (found.runtime, found.batch, found.rounds, found.isolated) == ("torch", 3, 3, False)
    assert model.training
    with pytest.raises(ConfigError, match="rounds"):
        measure_latency(model, torch.randn(3, 4), rounds=0)


def test_latency_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency_module, "find_spec", lambda name: None)
    models = {"one": nn.Linear(4, 4), "two": nn.Linear(4, 4)}
    found = measure_latency(models, torch.randn(3, 4), rounds=2, seconds=0.002, threads=1)
    assert [entry.name for entry in found] == ["one", "two"]
    assert all(entry.isolated and entry.threads == 1 for entry in found)
    assert "one, torch" in str(
        report(models["one"]).__class__("x", report(models["one"]).sizes, (), latency=tuple(found))
    )


@pytest.mark.parametrize("program", ["false", "true", "no-such-program"])
def test_a_failed_measuring_process_is_reported(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency_module, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "executable", program)
    (found,) = measure_latency(nn.Linear(4, 4), torch.randn(3, 4), rounds=1, seconds=0.001)
    assert not found.isolated


def test_what_cannot_be_exported_is_timed_on_the_cpu_with_the_threads_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(latency_module, "_write", lambda *_: False)
    seen = []

    class Watched(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append((torch.get_num_threads(), self.training, x.device.type))
            return super().forward(x)

    model, before = Watched(4, 4).train(), torch.get_num_threads()
    (found,) = measure_latency(model, torch.randn(2, 4), rounds=1, seconds=0.001, threads=before + 1)
    assert not found.isolated
    assert set(seen) == {(before + 1, False, "cpu")}
    assert model.training
    assert torch.get_num_threads() == before
