"""What an installation brings: few packages for the library, the command line as an extra, Windows' lack of POSIX modules."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_HEAVY = ("typer", "rich", "click", "onnx", "onnxruntime", "optuna", "tensorboard", "wandb", "mlflow", "lightning")
_HIDDEN = "import sys\nfor name in {names!r}: sys.modules[name] = None\n"


def _python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=240)


def test_the_library_needs_four_packages() -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    names = {line.split(">")[0] for line in project["dependencies"]}
    assert names == {"torch", "numpy", "safetensors", "constriction"}
    assert "cli" in project["optional-dependencies"]["all"][0]


def test_the_source_distribution_has_what_its_tests_and_its_site_read() -> None:
    rules = [line.split() for line in (_ROOT / "MANIFEST.in").read_text().splitlines()]
    whole = {words[1] for words in rules if words[0] == "graft"}
    assert whole == {"tests", "docs", "examples", "benchmarks", "results"}
    files = [name for words in rules if words[0] == "include" for name in words[1:]]
    assert {"mkdocs.yml", "Makefile", "constraints.txt", "CONTRIBUTING.md"} <= set(files)
    assert all((_ROOT / name).exists() for name in (*whole, *files))


def test_importing_the_library_brings_little() -> None:
    names = (*_HEAVY, "triton", "paretorch.cli", "paretorch.training")
    done = _python(f"import sys, paretorch; print([name for name in {names!r} if name in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_training_works_without_the_extras(tmp_path: Path) -> None:
    code = _HIDDEN.format(names=_HEAVY) + (
        "import torch, paretorch as pt\n"
        "from paretorch.training import Recipe, Runtime, train\n"
        "from paretorch.training.recipe_values import recipe_from\n"
        "recipe = recipe_from({'network': 'digits-cnn', 'network_options': {'width': 2}, 'data': 'digits', 'epochs': 1,"
        " 'compression.sparsity': 0.5})\n"
        "sys.stdout.isatty = lambda: True\n"  # a terminal, where rich would draw a bar
        "print(train(recipe, __import__('pathlib').Path(sys.argv[1]), Runtime(device='cpu'))['sparsity'])\n"
    )
    done = _python(code, str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_the_command_line_names_its_extra(missing: str) -> None:
    code = (
        _HIDDEN.format(names=(missing,))
        + "sys.argv = ['pare', 'demo', '--help']\nfrom paretorch.cli import main\nmain()"
    )
    done = _python(code)
    assert done.returncode == 1
    assert done.stderr.strip().count("\n") == 0
    assert "paretorch[cli]" in done.stderr


@pytest.mark.parametrize("option", ["--show-completion", "--install-completion"])
def test_tab_completion_is_offered(option: str, tmp_path: Path) -> None:
    code = f"import sys\nsys.argv = ['pare', {option!r}, 'bash']\nfrom paretorch.cli import main\nmain()"
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, env={**environment, **_path()}
    )
    assert done.returncode == 0, done.stderr
    if option == "--show-completion":
        assert "_PARE_COMPLETE" in done.stdout
    else:
        assert any("_PARE_COMPLETE" in path.read_text() for path in tmp_path.rglob("*") if path.is_file())


def _path() -> dict[str, str]:
    import os

    return {name: os.environ[name] for name in ("PYTHONPATH", "VIRTUAL_ENV") if name in os.environ}
