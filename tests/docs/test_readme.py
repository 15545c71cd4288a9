"""The README's example runs as written."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

README = Path(__file__).parents[2] / "README.md"


def test_the_ten_lines_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert code is not None
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    x = torch.randn(256, 16)
    y = x[:, :4].argmax(1)
    loader, epochs = list(zip(x.split(32), y.split(32), strict=True)), 10
    names = {"model": model, "criterion": nn.CrossEntropyLoss(), "epochs": epochs, "loader": loader}
    exec(code.group(1), names | {"batches": loader * epochs})
    printed = capsys.readouterr().out
    assert "95.0" in printed or "0.95" in printed
    assert (tmp_path / "model.pare").stat().st_size < 2000
    assert float((model[0].weight == 0).sum() + (model[2].weight == 0).sum()) >= 0.949 * 1280


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README.read_text())
    assert targets
    assert [target for target in targets if not (README.parent / target).exists()] == []
