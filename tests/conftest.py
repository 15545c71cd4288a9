"""One thread a worker: tests run side by side, and results repeat."""

import torch

torch.set_num_threads(1)
