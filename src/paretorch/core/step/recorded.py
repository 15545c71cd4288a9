"""Device operations that are the same at every step: recorded as a CUDA graph after a few steps, then replayed; or compiled, if asked.

Schedules and feedback are a hundred small operations, which take a GPU no time but the host that launches them half a millisecond.
Nothing is compiled: a graph repeats what was launched. Inside the graph of a user's own nothing is recorded, and nothing on a CPU.
"""

from collections.abc import Callable, Hashable
from itertools import count
from types import FunctionType, MethodType
from typing import Any

import torch

_numbers = count()
_WARM = 3  # steps before a recording: allocations and choices of kernels have been made then


class Recorded:
    """Runs operations, from a recording if there is one."""

    def __init__(self) -> None:
        self._version = -1
        self._graphs: dict[Hashable, Any] = {}
        self._seen: dict[Hashable, int] = {}
        self._is_refused = False

    def __deepcopy__(self, memo: dict[int, Any]) -> "Recorded":
        return Recorded()  # a recording works on the tensors that it was made with

    def __reduce__(self) -> tuple[type["Recorded"], tuple[()]]:
        return Recorded, ()

    def run(self, body: Callable[[], None], device: torch.device, version: int, key: Hashable | None) -> bool:
        """Run the operations of `body`, or replay them.

        Args:
            body: Launches operations that are the same whenever version and key are.
            device: Where.
            version: Recordings of another version are dropped.
            key: None: the operations cannot be recorded.

        Returns:
            Whether `body` itself was not called.
        """
        if key is None or device.type != "cuda" or self._is_refused or torch.cuda.is_current_stream_capturing():
            body()
            return False
        if version != self._version:
            self._version, self._graphs, self._seen = version, {}, {}
        graph = self._graphs.get(key)
        if graph is None:
            self._seen[key] = self._seen.get(key, 0) + 1
            if self._seen[key] <= (1 if self._graphs else _WARM):
                body()
                return False
            graph = self._record(body, device)
            if graph is None:
                body()
                return False
            self._graphs[key] = graph
        graph.replay()
        return True

    def _record(self, body: Callable[[], None], device: torch.device) -> Any:
        """The recording, which has not run yet; None, from then on, if an operation waits for the GPU."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        try:
            with torch.cuda.stream(stream):
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    body()
                finally:
                    graph.capture_end()
        except RuntimeError:
            self._is_refused = True
            torch.cuda.current_stream(device).wait_stream(stream)
            return None
        torch.cuda.current_stream(device).wait_stream(stream)
        return graph


class Compiled:
    """A function of tensors that is called at every step, by torch's compiler from the first call on."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function
        self._made: Callable[..., None] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "Compiled":
        return Compiled(self._function)

    def __reduce__(self) -> tuple[type["Compiled"], tuple[Callable[..., None]]]:
        return Compiled, (self._function,)

    def __call__(self, *args: Any) -> None:
        if self._made is None:
            self._made = torch.compile(copy_code(self._function), dynamic=False)
        self._made(*args)


def copy_code(function: Any) -> Any:
    """Return a copy of a function, or bound method, with a code object of its own.

    torch.compile counts recompilations per code object and gives up after eight, so several models in one process must not
    share a code object. What was compiled is freed with the copy.
    """
    if isinstance(function, MethodType):
        return MethodType(copy_code(function.__func__), function.__self__)
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_numbers)}")
    return FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)
