"""A user's own functions, named as FILE.py:FUNCTION or package.module:FUNCTION.

Such a name runs code, so it is trusted only if the user typed it: the command line calls `allow_code` for what was given to
--network, --data and --task. A name that comes from a file instead, such as the config.json of a run folder from somebody
else, is refused until it is given on the command line too.
"""

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from paretorch.errors import ConfigError, PareError
from paretorch.support.eval_mode import first_sentence

PREFIXES = ("folder", "hf", "timm", "webdataset")
"""What names something else than a user's code before the colon."""

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_allowed: set[str] = set()


def names_code(text: str) -> bool:
    """Whether the text is FILE.py:FUNCTION or package.module:FUNCTION.

    Example:
        >>> names_code("mine.py:build"), names_code("resnet20"), names_code("folder:photos")
        (True, False, False)
    """
    path, colon, _ = text.rpartition(":")
    if path.endswith(".py"):
        return True
    return bool(colon) and path not in PREFIXES and _MODULE.fullmatch(text) is not None


def allow_code(*names: object) -> None:
    """Trust these names from now on, in this process; what names no code is passed over."""
    _allowed.update(name for name in names if isinstance(name, str) and names_code(name))


def words_that_allow(names: Mapping[str, str | None]) -> list[str]:
    """Words of a command line that trust in another process what is trusted here of these names, by their options.

    Example:
        >>> allow_code("mine.py:build")
        >>> words_that_allow({"--network": "mine.py:build", "--data": "digits"})
        ['--network', 'mine.py:build']
    """
    return [word for option, name in names.items() if name is not None and name in _allowed for word in (option, name)]


def load_function(text: str, option: str) -> Callable[..., Any]:
    """Return the function that a name stands for.

    Args:
        text: FILE.py:FUNCTION or package.module:FUNCTION, allowed by `allow_code`.
        option: What errors name, such as "--network".
    """
    if text not in _allowed:
        raise ConfigError(f"{text} is code, and this command line does not name it: add {option} {text} to run it")
    place, _, name = text.rpartition(":")
    try:
        module = _from_file(Path(place), option) if place.endswith(".py") else _from_path(place)
    except PareError:
        raise
    except Exception as error:  # a user's file may raise anything
        raise ConfigError(
            f"{option} {text} cannot be imported: {type(error).__name__}: {first_sentence(error)}"
        ) from error
    found = getattr(module, name, None)
    if not callable(found):
        raise ConfigError(f"{option} {text}: {place} has no function {name!r}")
    function: Callable[..., Any] = found
    return function


def call_function(text: str, option: str, **options: Any) -> Any:
    """Return what the function gives; whatever it raises becomes one sentence."""
    function = load_function(text, option)
    try:
        return function(**options)
    except PareError:
        raise
    except Exception as error:  # as above
        raise ConfigError(f"{option} {text} raised {type(error).__name__}: {first_sentence(error)}") from error


def short_name(text: str) -> str:
    """A name as a part of a folder's: of mine.py:build "mine", of folder:a/b "b".

    Example:
        >>> short_name("nets/mine.py:build"), short_name("folder:photos/cats"), short_name("resnet20")
        ('mine', 'cats', 'resnet20')
    """
    kept = text.rpartition(":")[0] if names_code(text) else text.partition(":")[2] or text
    last = Path(kept).name.removesuffix(".py") or Path(kept).resolve().name
    return re.sub(r"[^\w.-]+", "-", last)


def _from_file(file: Path, option: str) -> ModuleType:
    if not file.is_file():
        raise ConfigError(f"{option}: there is no file {file}")
    file = file.resolve()
    known = sys.modules.get(file.stem)
    if known is not None and getattr(known, "__file__", None) == str(file):
        return known  # network, data and task of one file share its globals
    name = file.stem if known is None else f"{file.stem}_{abs(hash(file)):x}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{option}: {file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles look their module up there
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # for files that it imports; last, so that it hides no package
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _from_path(place: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    return importlib.import_module(place)
