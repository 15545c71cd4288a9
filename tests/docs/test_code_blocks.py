"""Every code block of the README and of docs/ runs as written; every `pare` line is one that the command line takes."""

import re
import shlex
import warnings
from pathlib import Path

import pytest
import torch
import typer
from sybil import Document, Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser
from typer.testing import CliRunner

from paretorch.cli.app import app
from paretorch.workflows.studies import study_names

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = typer.main.get_command(app)
_LANGUAGES = {"python", "sh", "toml", "text", "json", ""}


def setup() -> dict[str, object]:
    """The names that docs/examples.md says it gives to all blocks."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/examples.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, "docs/examples.md", "exec"), names)
    return names


def run(example: Example) -> None:
    """Each block begins with these names and none of the blocks before it."""
    torch.manual_seed(0)
    example.namespace.clear()
    example.namespace.update(setup())
    PythonEvaluator()(example)


def blocks(page: Path, language: str) -> list[Example]:
    sybil = Sybil([CodeBlockParser(language, run)], path=str(page.parent))
    document: Document = sybil.parse(page)
    return list(document.examples())


def section(page: Path, line: int) -> str:
    """The heading above a line."""
    above = page.read_text().splitlines()[:line]
    return next((one.lstrip("# ") for one in reversed(above) if re.match("#+ ", one)), "")


# Their own tests run them, and look at what comes out: test_guide.py.
ELSEWHERE = {("guide.md", "Signatures"), ("guide.md", "Distillation")}
CASES = [
    pytest.param(example, id=f"{page.relative_to(ROOT)}:{example.line}")
    for page in PAGES
    for example in blocks(page, "python")
    if (page.name, section(page, example.line)) not in ELSEWHERE
]


@pytest.mark.parametrize("example", CASES)
def test_block_runs(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of runs too short to settle anything
        example.evaluate()


def test_every_block_has_a_language_that_is_tried() -> None:
    for page in PAGES:
        for _, language in re.findall(r"^(```+)(.*)$", page.read_text(), re.MULTILINE):
            assert language.strip() in _LANGUAGES, (page.name, language)


def lines(text: str) -> list[str]:
    """The commands of a block of shell code, without comments and loops around them."""
    joined = re.sub(r"\\\n\s*", "", text)
    plain = [re.sub(r"(^|\s)#.*$", "", line).strip() for line in joined.splitlines()]
    return [re.sub(r"^for [^;]*; do (.*) & done; wait$", r"\1", line) for line in plain if line]


def commands(page: Path) -> list[str]:
    """The commands in blocks of shell code."""
    return [line for example in blocks(page, "sh") for line in lines(str(example.parsed))]


def mentions(page: Path) -> list[str]:
    """The `pare` commands in the text; those that leave something out (…) or have a placeholder name only parts."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"`(pare [^`\n]+)`", prose)
    return [one for one in found if not re.search(r"…|\.\.\.|\b[A-Z]{3,}\b", one)]


def parse(command: str) -> None:
    """Reads one `pare` line as the command line does, up to calling the function."""
    words = shlex.split(command)[1:]
    words = words[: next((i for i, word in enumerate(words) if word in ("&&", "|", ">")), len(words))]
    if words == ["--version"] or words == ["--help"]:
        return
    with COMMANDS.make_context("pare", list(words)) as context:
        name, found, rest = COMMANDS.resolve_command(context, words)
        assert found is not None, command
        found.make_context(name, list(rest), parent=context)
        if name == "study" and rest and not rest[0].startswith("-"):
            assert rest[0] in study_names() or rest[0].endswith(".toml"), command


def tried(command: str, *, part: bool = False) -> None:
    """Parses the command; a part of one, as in `pare fold`, may leave out what must be given."""
    try:
        parse(command)
    except Exception as error:
        if not (part and type(error).__name__ == "MissingParameter"):
            raise AssertionError(f"{command}: {error}") from error


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_commands_exist(page: Path) -> None:
    for command in mentions(page):
        tried(command, part=True)
    makefile = (ROOT / "Makefile").read_text()
    for command in commands(page):
        words = shlex.split(command)
        match words:
            case ["pare" | ".venv/bin/pare", *_]:
                tried(command)
            case ["make", *targets]:
                assert all(f"\n{target}:" in makefile for target in targets), command
            case [python, script, *options] if python.endswith("python") and script.endswith(".py"):
                source = (ROOT / script).read_text()
                assert all(f'"{one}"' in source for one in options if one.startswith("--")), command
            case [first, *_]:
                assert first in {
                    "git",
                    "cd",
                    "python",
                    "python3",
                    "pip",
                    ".venv/bin/pip",
                    ".venv/bin/python",
                    "torchrun",
                }, command


def test_commands_of_the_start_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo has a test of its own."""
    monkeypatch.chdir(tmp_path)
    run = [one for one in commands(ROOT / "docs/start.md") if one.startswith("pare ")]
    assert len(run) == 3
    for command in run:
        done = CliRunner().invoke(app, shlex.split(command)[1:])
        assert done.exit_code == 0, (command, done.output)
    (shown,) = re.findall(r"test accuracy +([\d.]+)%|accuracy +([\d.]+)%", done.output)[:1]
    assert max(float(one or 0) for one in shown) > 90
    dense = tmp_path / "runs/dense/model.pare"
    assert (tmp_path / "small.pare").stat().st_size < dense.stat().st_size / 5


def test_wrong_commands_are_found() -> None:
    for wrong in ("pare tran --network resnet20", "pare train --networks resnet20", "pare study no-such-study"):
        with pytest.raises(Exception, match=r"tran|networks|no-such"):
            parse(wrong)
