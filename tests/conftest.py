"""One thread a worker, so that tests run side by side and results repeat."""

import os

# Some virtual machines announce AMX and die on its first instruction: bf16 then goes by AVX-512 or plainer.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import torch

torch.set_num_threads(1)
