"""torch.export and the exporter to ONNX without what they print: the graph that they cannot export, advice, warnings."""

import contextlib
import io
import logging
import threading
import warnings
from collections.abc import Iterator

_LOUD = ("torch", "onnxscript", "onnx_ir")  # whose loggers, dozens with levels of their own, are silenced
_ONE = threading.RLock()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nothing is said on the way: what went wrong is told in one sentence. One at a time, as it is for the whole process."""
    with _ONE:
        names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] in _LOUD]
        heard = [logger for logger in map(logging.getLogger, names) if not logger.disabled]
        parents = [(logger, logger.level) for logger in map(logging.getLogger, _LOUD)]  # of those that are yet to come
        aside = io.StringIO()  # the exporter prints the graph that it cannot export
        try:
            for logger in heard:
                logger.disabled = True
            for logger, _ in parents:
                logger.setLevel(logging.CRITICAL)
            with warnings.catch_warnings(), contextlib.redirect_stdout(aside), contextlib.redirect_stderr(aside):
                warnings.simplefilter("ignore")
                yield
        finally:
            for logger in heard:
                logger.disabled = False
            for logger, level in parents:
                logger.setLevel(level)
