"""Code blocks of the guide that are whole programs run as written."""

import re
from pathlib import Path

import pytest
import torch

GUIDE = Path(__file__).parents[2] / "docs" / "guide.md"


@pytest.mark.parametrize("title", ["Signatures", "Distillation"])
def test_the_code_of_a_section_runs(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = GUIDE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    exec(code, names)
    small = names["small"]
    assert isinstance(small, torch.nn.Module)
    if title == "Signatures":
        import onnxruntime

        session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
        assert [one.name for one in session.get_inputs()] == ["image", "numbers"]
        assert [one.name for one in session.get_outputs()] == ["value"]
        assert small.image.out_channels < 8
    else:
        assert sum(len(layer.weight.unique()) for layer in (small[0], small[2])) < 200, "few bits"
