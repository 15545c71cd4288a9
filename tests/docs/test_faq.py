"""Every message that docs/faq.md explains is one that the library can raise or warn of."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import paretorch

PAGE = (Path(__file__).parents[2] / "docs" / "faq.md").read_text()
SOURCE = Path(paretorch.__file__).parent
QUOTES = re.findall(r"^\| `(.+?)` \| ", PAGE, re.MULTILINE)
GAP = "\0"  # stands for what a message fills in


def text(node: ast.AST) -> str:
    """A message as it stands in the code."""
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=values):
            return "".join(text(value) for value in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return text(left) + text(right)
    return GAP


@cache
def messages() -> list[str]:
    return list(_messages())


def _messages() -> Iterator[str]:
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr | ast.BinOp | ast.Constant):
                found = text(node)
                if len(found) > 12 and " " in found:
                    yield found


def says(message: str, quote: str) -> bool:
    """Whether the words of the quote are in the message, in order; … stands for what is left out or filled in."""
    place = 0
    for part in (part.strip() for part in quote.split("…")):
        place = message.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return len(quote.replace("…", "").strip()) > 8


@pytest.mark.parametrize("quote", QUOTES)
def test_message_exists(quote: str) -> None:
    assert any(says(message, quote) for message in messages()), quote


def test_all_rows_are_tried() -> None:
    assert len(QUOTES) == len(re.findall(r"^\| (?!message|---)", PAGE, re.MULTILINE)) > 50


def test_a_message_that_is_not_there_is_found() -> None:
    assert not any(says(message, "compress needs at least two methods, such as …") for message in messages())
