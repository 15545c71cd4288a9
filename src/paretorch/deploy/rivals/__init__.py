"""The files that others would write of a network: what an artefact's bytes are compared with.

Each is really written, and each can be read back, so that its accuracy is that of the file and not of what it was made
from.
"""

from paretorch.deploy.rivals.channels import prune_channels
from paretorch.deploy.rivals.int8 import OnnxNetwork, write_int8
from paretorch.deploy.rivals.plain import read_plain, write_plain
from paretorch.deploy.rivals.sparse import read_sparse, write_sparse
from paretorch.deploy.rivals.weight_int8 import read_weight_int8, write_weight_int8

__all__ = [
    "OnnxNetwork",
    "prune_channels",
    "read_plain",
    "read_sparse",
    "read_weight_int8",
    "write_int8",
    "write_plain",
    "write_sparse",
    "write_weight_int8",
]
