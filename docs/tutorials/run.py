"""Runs the tutorials and stores what they print: python docs/tutorials/run.py [NAME...]

Notebooks run in an empty folder, so that what they write stays out of the repository. Their format is that of the stored files: no times, no
counts of executions, so that a run that gives the same results changes nothing.
"""

from __future__ import annotations

import ast
import hashlib
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent


def digest(notebook: nbformat.NotebookNode) -> str:
    """Of the code of all cells, however it is formatted: outputs with another one are not those of this code."""
    code = [ast.unparse(ast.parse(cell.source)) for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256("\0".join(code).encode()).hexdigest()


def joined(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Lines that were printed one after the other as one output, however they came."""
    found: list[nbformat.NotebookNode] = []
    for one in outputs:
        if found and one.output_type == found[-1].output_type == "stream":
            found[-1].text += one.text
        else:
            found.append(one)
    return found


def run(path: Path, seconds: int = 1200) -> nbformat.NotebookNode:
    """The notebook with the outputs of a run of now; an error of a cell raises."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=seconds, resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:
        cell.metadata.clear()
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = joined([one for one in cell.outputs if one.get("name") != "stderr"])
            for output in cell.outputs:
                output.pop("execution_count", None)
                if output.output_type == "execute_result":
                    output["execution_count"] = None
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
            "paretorch": {"code": digest(notebook)},
        }
    )
    return notebook


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.ipynb")):
        if sys.argv[1:] and path.stem not in sys.argv[1:]:
            continue
        start = time.perf_counter()
        nbformat.write(run(path), path)
        print(f"{path.name}: {time.perf_counter() - start:.0f} s")
