"""Layers that run faster than dense ones on real hardware, and `optimize`, which uses them where it measured so."""

from paretorch.deploy.fast.choices import Account, Choice
from paretorch.deploy.fast.choosing import Optimized, optimize
from paretorch.deploy.fast.packed_linear import PackedLinear
from paretorch.deploy.fast.sparse import SparseLinear, SparsePointwise

__all__ = ["Account", "Choice", "Optimized", "PackedLinear", "SparseLinear", "SparsePointwise", "optimize"]
