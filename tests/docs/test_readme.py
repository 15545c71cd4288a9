"""The README's example runs as written."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

README = Path(__file__).parents[2] / "README.md"


def test_the_ten_lines_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _, code = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[:2]
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    x = torch.randn(256, 16)
    y = x[:, :4].argmax(1)
    loader, epochs = list(zip(x.split(32), y.split(32), strict=True)), 10
    names = {"torch": torch, "model": model, "criterion": nn.CrossEntropyLoss(), "epochs": epochs, "loader": loader}
    exec(code, names | {"batches": loader * epochs})
    printed = capsys.readouterr().out
    assert "95.0" in printed or "0.95" in printed
    assert (tmp_path / "model.pare").stat().st_size < 2000
    assert float((model[0].weight == 0).sum() + (model[2].weight == 0).sum()) >= 0.949 * 1280


def test_the_two_lines_for_a_trained_model_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 4))
    exec(code, {"model": model, "batches": list(torch.randn(512, 64).split(32))})
    dense = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert 0 < (tmp_path / "model.pare").stat().st_size <= dense / 10


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README.read_text())
    assert targets
    assert [target for target in targets if not (README.parent / target).exists()] == []
