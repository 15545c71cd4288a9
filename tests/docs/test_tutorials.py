"""The tutorials are stored as they ran: all cells, without errors, with the code that is in them, and they keep their word."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
NAMES = ["language", "tickets", "vision"]


def runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_tutorials", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def printed(name: str) -> str:
    cells = [cell for cell in read(name).cells if cell.cell_type == "code"]
    return "".join(output.get("text", "") for cell in cells for output in cell.outputs)


def test_all_tutorials_are_here() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES
    assert all(f"]({name}.ipynb)" in (FOLDER / "index.md").read_text() for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_those_of_the_code(name: str) -> None:
    notebook = read(name)
    nbformat.validate(notebook)
    assert notebook.metadata["paretorch"]["code"] == runner().digest(notebook), "run: make notebooks"
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert len(outputs) >= 3
    assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}


def test_a_notebook_is_run_and_an_error_raises(tmp_path: Path) -> None:
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("open('x', 'w').close()\nprint(6 * 7)")])
    nbformat.write(made, tmp_path / "one.ipynb")
    ran = runner().run(tmp_path / "one.ipynb", seconds=60)
    assert ran.cells[0].outputs[0].text == "42\n"
    assert ran.metadata["paretorch"]["code"] == runner().digest(made)
    assert not Path("x").exists()
    made.cells[0].source = "1 / 0"
    nbformat.write(made, tmp_path / "one.ipynb")
    with pytest.raises(Exception, match="ZeroDivisionError"):
        runner().run(tmp_path / "one.ipynb", seconds=60)


def percent(text: str) -> float:
    (found,) = re.findall(r"([\d.]+)%", text)
    return float(found)


def test_the_vision_model_keeps_its_accuracy_in_a_tenth() -> None:
    rows = {line.split("  ")[0]: line for line in printed("vision").splitlines() if " kB   accuracy" in line}
    size = {name: float(re.findall(r"([\d.]+) kB", line)[0]) for name, line in rows.items()}
    correct = {name: percent(line.split("accuracy")[1]) for name, line in rows.items()}
    assert size["1/10 of the bytes, steps=0"] <= size["dense"] / 10
    assert size["1/25 of the bytes, steps=60"] <= size["dense"] / 25
    assert correct["dense"] > 90
    assert correct["1/10 of the bytes, steps=0"] > correct["dense"] - 1.5
    assert correct["1/25 of the bytes, steps=60"] >= correct["1/25 of the bytes, steps=0"]
    (onnx,) = re.findall(r"accuracy in onnxruntime ([\d.]+)%", printed("vision"))
    assert float(onnx) == pytest.approx(correct["1/25 of the bytes, steps=60"], abs=0.3)


def test_the_language_model_is_better_than_gptq_in_its_bytes() -> None:
    found = re.findall(r"^(.+?) {2,}([\d.]+) kB +([\d.]+) bits per character$", printed("language"), re.MULTILINE)
    rows = {name: (float(size), float(bits)) for name, size, bits in found}
    for count, steps in ((4, 0), (3, 0), (3, 60)):
        rival, ours = rows[f"{count} bits, GPTQ"], rows[f"shrink, {count}-bit bytes, steps={steps}"]
        assert ours[0] <= rival[0]
        assert ours[1] < rival[1]


def test_the_study_of_tickets_has_a_control_for_each() -> None:
    lines = [line for line in printed("tickets").splitlines() if line.count("±") == 2]
    assert [line.split()[0] for line in lines] == ["IMP"] * 3 + ["CS"] * 3
    for line in lines:
        sparsity, ticket, shuffled = re.findall(r"([\d.]+)%", line)
        if float(sparsity) > 90:
            spreads = re.findall(r"± ([\d.]+)", line)
            assert float(ticket) - float(shuffled) > max(map(float, spreads)), line
