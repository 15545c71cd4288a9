"""Functions that are compiled many times in one process."""

from itertools import count
from types import FunctionType, MethodType
from typing import Any

_numbers = count()


def copy_code(function: Any) -> Any:
    """Return a copy of a function, or bound method, with a code object of its own.

    torch.compile counts recompilations per code object and gives up after eight, so several models in one process must not
    share a code object. What was compiled is freed with the copy.
    """
    if isinstance(function, MethodType):
        return MethodType(copy_code(function.__func__), function.__self__)
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_numbers)}")
    return FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)
