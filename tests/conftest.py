"""One thread a worker, so that tests run side by side and results repeat."""

import os

# Some virtual machines announce AMX and die on its first instruction: bf16 then goes by AVX-512 or plainer.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
# Inductor would start processes of its own, each of which imports torch, to compile two kernels.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start, too: sums depend on the number of threads

import torch

torch.set_num_threads(1)
