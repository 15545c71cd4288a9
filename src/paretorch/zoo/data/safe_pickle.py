"""Reads the pickles of the CIFAR authors without running anything in them.

A pickle names functions to call. Here it can name only those for uint8 arrays and byte strings, and they are replaced by
harmless stand-ins instead of numpy's. The interpreter is the one in Python: the one in C can be made to allocate without
limit by a few bytes.
"""

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt


def loads(data: bytes) -> Any:
    """Return the object in `data`: dicts, lists, numbers, byte strings and uint8 arrays. Anything else raises ValueError."""
    allowed, arrays = _stand_ins()

    class Reader(pickle._Unpickler):  # type: ignore[misc,name-defined,unused-ignore]
        def find_class(self, module: str, name: str) -> Any:
            if (module, name) not in allowed:
                raise ValueError(f"it asks for {module}.{name}, which no CIFAR file needs")
            return allowed[module, name]

    try:
        return arrays(Reader(io.BytesIO(data), encoding="bytes").load())
    except Exception as error:  # a damaged pickle can raise anything
        raise ValueError(str(error) or type(error).__name__) from error


def _stand_ins() -> tuple[dict[tuple[str, str], Any], Callable[[Any], Any]]:
    """The names that a pickle may use, and a function that replaces the stand-ins by arrays.

    The classes are new at each call: a pickle can set attributes on them, which the next one must not see.
    """

    class Dtype:
        def __init__(self, kind: Any = None, *_: Any) -> None:
            if kind not in (b"u1", "u1"):
                raise ValueError(f"it holds an array of type {kind!r} instead of uint8")

        def __setstate__(self, state: Any) -> None:
            pass  # byte order and the like, which do not matter for single bytes

    class Array:
        values: npt.NDArray[np.uint8] | None = None

        def __setstate__(self, state: Any) -> None:
            _, shape, _, fortran, raw = state
            self.values = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")

    def reconstruct(*_: Any) -> Array:
        return Array()

    def encode(text: str, encoding: str) -> bytes:
        if encoding != "latin1":
            raise ValueError(f"it holds bytes in the encoding {encoding!r}")
        return text.encode("latin1")

    def arrays(value: Any) -> Any:
        if isinstance(value, Array):
            return value.values
        if isinstance(value, dict):
            return {key: arrays(entry) for key, entry in value.items()}
        return value

    allowed = {
        ("numpy.core.multiarray", "_reconstruct"): reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): reconstruct,
        ("numpy", "ndarray"): Array,
        ("numpy", "dtype"): Dtype,
        ("_codecs", "encode"): encode,  # how Python 3 writes byte strings for Python 2
    }
    return allowed, arrays
