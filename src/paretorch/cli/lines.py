"""Lines of text as a terminal shows them best."""

import shutil
import sys
import textwrap

import typer


def say(text: str, err: bool = False) -> None:
    """Print a line; a terminal gets it broken between words, anything else as one line, which a program can read.

    Args:
        err: Whether it goes to stderr.
    """
    if (sys.stderr if err else sys.stdout).isatty():
        text = fitted(text, shutil.get_terminal_size().columns)
    typer.echo(text, err=err)


def fitted(text: str, width: int) -> str:
    """The text in lines of at most `width` columns; a longer word, such as a path, stays whole.

    Example:
        >>> fitted("pare: 1,205 bytes of a-long-name", 16)
        'pare: 1,205\\nbytes of\\na-long-name'
    """
    return textwrap.fill(text, max(width, 1), break_long_words=False, break_on_hyphens=False)
