"""The first code block of the page on trained models runs as written, and its budget holds."""

import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "trained-model.md"


def test_the_first_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    exec(code, names)
    assert isinstance(names["small"], torch.nn.Sequential)
    assert 2500 < (tmp_path / "model.pare").stat().st_size <= 3000
