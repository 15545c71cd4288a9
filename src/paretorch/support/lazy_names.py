"""Packages whose public names are imported when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """A package that looks for its public names in the modules that define them, and for its modules."""

    _homes: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        if name in self._homes:
            found = getattr(import_module(f"{self.__name__}.{self._homes[name]}"), name)
            setattr(self, name, found)
            return found
        if name.startswith("_") or find_spec(f"{self.__name__}.{name}") is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return import_module(f"{self.__name__}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        # Importing a module binds its name in the package, also if a function has the same name.
        if not (isinstance(value, ModuleType) and name in self.__dict__.get("_homes", ())):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._homes})


def import_lazily(package: str, homes: Mapping[str, tuple[str, ...]]) -> None:
    """Make public names available in a package, which is being imported.

    Args:
        homes: The names that each module or folder of the package defines.
    """
    module = sys.modules[package]
    module.__class__ = _Package
    module._homes = {name: home for home, names in homes.items() for name in names}  # type: ignore[attr-defined]
