"""Memory that was freed, given back to the operating system."""

import contextlib
import ctypes


def release_free_memory() -> None:
    """Let the C library return what it keeps for later: after large temporary arrays it may be more than a small network takes."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
