"""Functions to be compiled many times in one process."""

from itertools import count
from types import FunctionType, MethodType
from typing import Any

_numbers = count()


def own_code(function: Any) -> Any:
    """The function, or bound method, with a code object of its own.

    torch.compile counts recompilations per code object and gives up after eight: several models in one process must not
    share a count. What it compiled goes when the copy does.
    """
    if isinstance(function, MethodType):
        return MethodType(own_code(function.__func__), function.__self__)
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_numbers)}")
    return FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)
