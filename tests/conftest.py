"""One thread a worker, so that tests run side by side and results repeat."""

import os

# Some virtual machines announce AMX and die on its first instruction: bf16 then goes by AVX-512 or plainer.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
# Inductor would start processes of its own, each of which imports torch, to compile two kernels.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start, too: sums depend on the number of threads

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def short_timings() -> None:
    """Latencies are measured for 20 ms a round instead of 300: no test asks how long anything takes, but that it is told."""
    from paretorch.deploy.measure.latency import measure_latency

    defaults = measure_latency.__kwdefaults__
    assert defaults is not None
    defaults["seconds"] = 0.02
