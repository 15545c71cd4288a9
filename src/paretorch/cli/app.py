"""The commands of `pare`, put together."""

import functools
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any, Never, ParamSpec

import typer

from paretorch.cli.bench import bench
from paretorch.cli.check import check
from paretorch.cli.compare import compare
from paretorch.cli.data import data
from paretorch.cli.demo import demo
from paretorch.cli.export import export
from paretorch.cli.fold import fold
from paretorch.cli.lines import say
from paretorch.cli.report import report
from paretorch.cli.shrink import shrink
from paretorch.cli.study import study
from paretorch.cli.tickets import tickets
from paretorch.cli.train import train
from paretorch.cli.tune import tune
from paretorch.errors import DIVERGED_CODE, ConfigError, DivergenceError, PareError, PareWarning
from paretorch.support import __version__
from paretorch.support.processes import on_sigterm

P = ParamSpec("P")

_TO_CONTINUE = {
    "train": " --resume",
    "shrink": " --resume",
    "tickets": " --resume",
    "study": "",
    "tune": "",
    "bench": "",
}
"""What to add to the same command; those that are not here begin anew."""


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """The command with its errors on one line, and an exit code: 2 for wrong arguments, 3 where training diverged, 1 for any other failure, 130 for an interrupt."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with on_sigterm(_interrupt), warnings.catch_warnings():
                warnings.showwarning = functools.partial(_warn, warnings.showwarning, set())
                command(*args, **kwargs)
        except KeyboardInterrupt:
            raise _stop(f"Stopped. {_how_to_resume()}", 130) from None
        except BrokenPipeError:
            # The reader went away (`pare ... | head`): nothing to tell, and nothing more to flush.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except ConfigError as error:
            raise _stop(_as_typed(str(error), sys.argv[2:]), 2) from None
        except DivergenceError as error:
            raise _stop(str(error), DIVERGED_CODE) from None
        except PareError as error:
            raise _stop(str(error), 1) from None
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise _stop(f"{where}{error.strerror or error}.", 1) from None

    return run


_FLAGS = {"target": ("--sparsity", "--target"), "target_bits": ("--bits",), "bits": ("--bits",)}
"""Options of the command line whose name is not that of the field that they set."""


def _as_typed(message: str, words: list[str]) -> str:
    """The message with the option that was typed in place of the field that it sets: `--sparsity 95: …` for `target=95.0: …`."""
    found = re.match(r"(\w+)=([-+.\w]+): ", message)
    if found is None:
        return message
    typed = [word.split("=", 1) if "=" in word else [word, after] for word, after in pairwise([*words, ""])]
    for flag, value in typed:
        if flag not in _FLAGS.get(found[1], (f"--{found[1].replace('_', '-')}",)):
            continue
        if _is_same(value, found[2]):
            return f"{flag} {value}: {message[found.end() :]}"
        if flag == "--budget":  # 1/10 or 48kB became a number of bytes
            return f"{flag} {value}, {found[2]} bytes: {message[found.end() :]}"
    return message


def _is_same(typed: str, said: str) -> bool:
    try:
        return float(typed) == float(said)
    except ValueError:
        return typed == said


def _interrupt(*_: object) -> Never:
    """A batch system's word ends a command as Ctrl-C does: what it started is ended too."""
    raise KeyboardInterrupt


def _warn(
    others: Callable[..., None], shown: set[str], message: Warning | str, category: type[Warning], *where: Any
) -> None:
    """Our own warnings as a line, without the place in the code, each of them once; all others as they are."""
    if issubclass(category, PareWarning):
        if str(message) not in shown:
            shown.add(str(message))
            say(f"pare: warning: {message}", err=True)
    else:
        others(message, category, *where)


def _stop(message: str, code: int) -> typer.Exit:
    say(f"pare: {message}", err=True)
    return typer.Exit(code)


def _how_to_resume() -> str:
    words = [word for word in sys.argv[1:] if word != "--resume"]
    flag = _TO_CONTINUE.get(words[0]) if words else None
    return "" if flag is None else f"Continue with: {shlex.join(['pare', *words])}{flag}"


app = typer.Typer(
    help="Make PyTorch networks smaller and cheaper to train.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="markdown",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pare {__version__}")
        raise typer.Exit


@app.callback()
def _pare(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Make PyTorch networks smaller and cheaper to train."""


for command in (demo, shrink, train, tickets, fold, tune, report, compare, export, bench, study, check, data):
    app.command()(guarded(command))
