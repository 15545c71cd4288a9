"""One thread a worker, so that tests run side by side and results repeat."""

import functools
import gc
import os
from collections.abc import Iterator

# Some virtual machines announce AMX and die on its first instruction: bf16 then goes by AVX-512 or plainer.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
# Inductor would start processes of its own, each of which imports torch, to compile two kernels.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start, too: sums depend on the number of threads

import pytest
import torch

torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # what was imported stays to the end: no collection need look at it


@pytest.fixture(autouse=True, scope="module")
def no_garbage() -> Iterator[None]:
    """A plan that nobody holds any more is asked at each step of any optimizer until it is collected."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def short_timings() -> None:
    """Latencies are measured for 20 ms a round instead of 300: no test asks how long anything takes, but that it is told."""
    from paretorch.deploy.measure.latency import measure_latency

    defaults = measure_latency.__kwdefaults__
    assert defaults is not None
    defaults["seconds"] = 0.02


@pytest.fixture(autouse=True, scope="session")
def quick_exports() -> Iterator[None]:
    """torch.onnx reads the source of its 500 operators at each export, which takes half of the time: once is enough here."""
    try:
        from torch.onnx._internal.exporter._registration import ONNXRegistry
    except ImportError:  # of another torch
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(functools.cache(ONNXRegistry.from_torchlib)))
        yield
