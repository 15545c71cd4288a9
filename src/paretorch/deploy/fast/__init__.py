"""Layers that run faster than dense ones, and `optimize`, which uses those that it measures to be faster.

On a CPU, `SparseLinear` and `SparsePointwise` skip zeros. On a GPU, `PackedLinear` reads 2, 4 or 8 bits per weight: `codes`
defines the codes, `packing` lays them out in tiles, `kernel` multiplies by them, `launch` starts the kernel, and
`replacements` chooses how it is spread over the GPU.
"""

from paretorch.deploy.fast.layers import PackedLinear, SparseLinear, SparsePointwise
from paretorch.deploy.fast.optimize_model import Choice, Optimized, Summary, optimize

__all__ = ["Choice", "Optimized", "PackedLinear", "SparseLinear", "SparsePointwise", "Summary", "optimize"]
