"""Other ways to make a network smaller, to compare with: `files` of other tools, and pruning of `channels`.

Each file is written and read back, so that the accuracy is that of the file.
"""

from paretorch.deploy.rivals.channels import prune_channels
from paretorch.deploy.rivals.files import (
    OnnxNetwork,
    read_plain,
    read_sparse,
    read_weight_int8,
    write_int8,
    write_plain,
    write_sparse,
    write_weight_int8,
)

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
