"""Reads the pickles of the CIFAR authors without running anything in them.

A pickle is a program. This reader knows only the few opcodes that those files consist of: one dict of lists, byte strings
and uint8 arrays. Containers do not nest, so that a file can neither refer to itself nor grow as it is read: memory stays
below `GROWTH` bytes per byte of the file, and the time is proportional to its length.
"""

import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np

GROWTH = 64
"""Bytes of memory per byte of a pickle, at most; a list of whole numbers comes nearest."""
_PLAIN = (int, bytes, str, type(None))
_ARGUMENTS = {
    "BININT",
    "BININT1",
    "BININT2",
    "SHORT_BINSTRING",
    "BINSTRING",
    "SHORT_BINBYTES",
    "BINBYTES",
    "BINUNICODE",
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MARK = object()


class _Name(str):
    """A function or class that the pickle names; it is never looked up."""


class _Dtype:
    """The dtype uint8."""


class _Array:
    """An array whose values may follow."""

    values: "np.ndarray[Any, np.dtype[np.uint8]] | None" = None


_NAMES = {
    "numpy.core.multiarray _reconstruct": "reconstruct",
    "numpy._core.multiarray _reconstruct": "reconstruct",
    "numpy ndarray": "ndarray",
    "numpy dtype": "dtype",
    "_codecs encode": "encode",  # how Python 3 writes byte strings for Python 2
}


def loads(data: bytes) -> Any:
    """Return the object in `data`: a dict of lists, numbers, byte strings and uint8 arrays, or one of those.

    Raises:
        ValueError: The pickle is damaged, or holds something else.
    """
    try:
        return _Reader(data).read()
    except ValueError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise ValueError(f"it is damaged ({type(error).__name__})") from error


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._encoded = 0
        self._actions: dict[str, Callable[[Any], None]] = {
            "PROTO": lambda _: None,
            "MARK": lambda _: self._stack.append(_MARK),
            "EMPTY_DICT": lambda _: self._stack.append({}),
            "EMPTY_LIST": lambda _: self._stack.append([]),
            "TUPLE": lambda _: self._stack.append(_tuple(self._since_mark())),
            "APPEND": lambda _: self._extend([self._stack.pop()]),
            "APPENDS": lambda _: self._extend(self._since_mark()),
            "SETITEM": lambda _: self._update([self._stack.pop(-2), self._stack.pop()]),
            "SETITEMS": lambda _: self._update(self._since_mark()),
            "GLOBAL": self._name,
            "REDUCE": lambda _: self._reduce(),
            "BUILD": lambda _: self._build(),
        }
        for name in ("BINPUT", "LONG_BINPUT"):
            self._actions[name] = self._remember
        for name in ("BINGET", "LONG_BINGET"):
            self._actions[name] = lambda key: self._stack.append(self._memo[key])

    def read(self) -> Any:
        for opcode, argument, _ in pickletools.genops(self._data):
            name = opcode.name
            if name in _ARGUMENTS:
                self._stack.append(str(argument).encode("latin1") if name.endswith("STRING") else argument)
            elif name in _CONSTANTS:
                self._stack.append(_CONSTANTS[name])
            elif name in _TUPLES:
                self._stack.append(_tuple(self._pop(_TUPLES[name])))
            elif name in self._actions:
                self._actions[name](argument)
            elif name != "STOP":
                raise ValueError(f"it has the opcode {name}, which no CIFAR file needs")
        (found,) = self._stack
        return _finished(found)

    def _pop(self, count: int) -> list[Any]:
        if len(self._stack) < count:
            raise ValueError("it ends too early")
        start = len(self._stack) - count
        found = self._stack[start:]
        del self._stack[start:]
        return found

    def _since_mark(self) -> list[Any]:
        at = len(self._stack) - 1
        while self._stack[at] is not _MARK:
            at -= 1
        found = self._stack[at + 1 :]
        del self._stack[at:]
        return found

    def _remember(self, key: int) -> None:
        self._memo[key] = self._stack[-1]

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list or not all(isinstance(item, _PLAIN) for item in items):
            raise ValueError("it has a list of something other than numbers and strings")
        target.extend(items)

    def _update(self, items: list[Any]) -> None:
        target = self._stack[-1]
        keys, values = items[::2], items[1::2]
        if type(target) is not dict or not all(isinstance(key, _PLAIN) for key in keys) or len(keys) != len(values):
            raise ValueError("it has a dict with keys other than strings")
        if not all(isinstance(value, (*_PLAIN, list, _Array)) for value in values):
            raise ValueError("it has a dict of something other than numbers, strings, lists and arrays")
        target.update(zip(keys, values, strict=True))

    def _name(self, argument: str) -> None:
        if argument not in _NAMES:
            raise ValueError(f"it asks for {argument[:80].replace(' ', '.', 1)!r}, which no CIFAR file needs")
        self._stack.append(_Name(_NAMES[argument]))

    def _reduce(self) -> None:
        function, arguments = self._pop(2)
        if type(function) is not _Name or type(arguments) is not tuple:
            raise ValueError("it calls something that is not a function")
        if function == "reconstruct":
            self._stack.append(_Array())
        elif function == "dtype" and arguments[:1] in ((b"u1",), ("u1",)):
            self._stack.append(_Dtype())
        elif function == "dtype":
            raise ValueError(f"it holds an array of type {str(arguments[:1])[:40]} instead of uint8")
        elif function == "encode" and len(arguments) == 2 and arguments[1] == "latin1" and type(arguments[0]) is str:
            self._encoded += len(arguments[0])  # one string may be encoded many times
            if self._encoded > len(self._data):
                raise ValueError("its strings are longer than the file")
            self._stack.append(arguments[0].encode("latin1"))
        else:
            raise ValueError(f"it calls {function} in a way that no CIFAR file does")

    def _build(self) -> None:
        target, state = self._pop(2)
        if type(target) is _Array and target.values is None:
            _, shape, dtype, fortran, raw = state
            if type(dtype) is not _Dtype or type(raw) is not bytes:
                raise ValueError("it has an array without its bytes")
            target.values = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")
        elif type(target) is not _Dtype:  # of a dtype: byte order and the like, which single bytes do not have
            raise ValueError("it sets the state of something that has none")
        self._stack.append(target)


def _tuple(items: list[Any]) -> tuple[Any, ...]:
    for item in items:
        if isinstance(item, dict | list) or (type(item) is tuple and not all(isinstance(one, _PLAIN) for one in item)):
            raise ValueError("it has tuples that are nested too deep")
    return tuple(items)


def _finished(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finished(entry) for key, entry in value.items()}
    if isinstance(value, _Array):
        return value.values
    if not isinstance(value, (*_PLAIN, list)):
        raise ValueError(f"it holds a {type(value).__name__.strip('_').lower()}")
    return value
