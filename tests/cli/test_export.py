"""`pare export` as a user meets it: the file, what is printed, and the exit code."""

import json
import re
from pathlib import Path

import onnx
import pytest
import torch
from typer.testing import CliRunner

from paretorch import save, zoo
from paretorch.cli.app import app
from paretorch.cli.inputs import data_of


def _pare(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like that of a run, with a network of two bits."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    folder.mkdir()
    torch.manual_seed(0)
    model = zoo.build("digits-cnn", width=4)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randint(-2, 2, parameter.shape) * 0.125)
    save(model, folder / "model.pare")
    (folder / "config.json").write_text(json.dumps({"recipe": {"data": "digits"}}))
    return folder


def test_a_run_is_exported_beside_its_artefact(run: Path) -> None:
    told = _pare("export", str(run))
    file = run / "model.onnx"
    assert f"{file}: {file.stat().st_size:,} bytes (model.pare: {(run / 'model.pare').stat().st_size:,})" in told
    assert "INT2" in onnx.load(file).metadata_props[0].value
    assert onnx.load(file).metadata_props[0].value in told
    assert "accuracy" not in told


def test_int8_is_measured_on_the_data_of_the_run(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "small.onnx"
    told = _pare("export", str(run), str(file), "--int8", "--images", "64", "--percentile", "99.9")
    assert "in onnxruntime" in told
    assert any(node.op_type == "QuantizeLinear" for node in onnx.load(file).graph.node)


def test_a_lone_artefact_needs_a_shape(run: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.pare"
    alone.write_bytes((run / "model.pare").read_bytes())
    assert "--shape" in _pare("export", str(alone), code=2)
    assert "--data" in _pare("export", str(alone), "--int8", code=2)
    assert "--int8" in _pare("export", str(alone), "--percentile", "99", code=2)
    assert "three" in _pare("export", str(alone), "--shape", "three", code=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone.pare"]
    _pare("export", str(alone), "--shape", "1,8,8", "--weights", "fp32")
    assert "INT" not in onnx.load(tmp_path / "alone.onnx").metadata_props[0].value


def test_what_is_missing_or_unknown_is_named(run: Path, tmp_path: Path) -> None:
    assert "nothing.pare" in _pare("export", str(tmp_path / "nothing.pare"), code=2)
    assert "int3" in _pare("export", str(run), str(tmp_path / "net.onnx"), "--weights", "int3", code=2)


def test_the_artefact_is_not_replaced_and_no_shape_ignored(run: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.pare"
    alone.write_bytes((run / "model.pare").read_bytes())
    (tmp_path / "link.pare").symlink_to(alone)
    for name in ("alone.pare", "link.pare"):
        told = _pare("export", str(alone), str(tmp_path / name), "--shape", "1,8,8", code=2)
        assert "is the artefact itself" in told
    assert "leave out --shape" in _pare("export", str(alone), "--data", "digits", "--shape", "3,8,8", code=2)
    assert alone.read_bytes() == (run / "model.pare").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_the_page_names_only_flags_that_exist() -> None:
    page = (Path(__file__).parents[2] / "docs" / "onnx.md").read_text()
    lines = re.findall(r"^pare export .*$", page, re.MULTILINE)
    assert len(lines) == 3
    told = _pare("export", "--help")
    assert [flag for line in lines for flag in re.findall(r"--[a-z0-9]+", line) if flag not in told] == []


def test_the_data_of_runs_below_count_too(tmp_path: Path) -> None:
    assert data_of(tmp_path) == ""
    for name, data in (("dense", "digits"), ("small", "digits"), ("other", "cifar10")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"recipe": {"data": data}}))
        assert data_of(tmp_path) == ("digits" if name != "other" else "")
    (tmp_path / "config.json").write_text("{")
    assert data_of(tmp_path) == ""


def test_a_runtime_is_named(run: Path, tmp_path: Path) -> None:
    for runtime, name in (("openvino", "small.onnx"), ("onnxruntime-int4", "small.onnx"), ("gguf:Q8_0", "small.gguf")):
        told = _pare("export", str(run), str(tmp_path / name), "--runtime", runtime)
        assert f"{(tmp_path / name).stat().st_size:,} bytes" in told
    _pare("export", str(run), "--runtime", "gguf:Q8_0")
    assert (run / "model.gguf").exists()


def test_options_that_do_not_go_with_a_runtime(run: Path) -> None:
    for words, error in (
        (["--runtime", "openvino", "--weights", "qdq"], "--runtime says how weights are stored"),
        (["--runtime", "gguf:Q8_0", "--data", "digits"], "--data is for files that are run"),
        (["--runtime", "tflite"], "runtime='tflite' is not known"),
    ):
        assert error in " ".join(_pare("export", str(run), *words, code=2).split())
