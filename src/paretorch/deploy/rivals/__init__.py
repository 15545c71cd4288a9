"""What others would do with a network, to compare with: their files (`files`), and channel pruning (`channels`).

Each file is really written and can be read back, so that its accuracy is that of the file.
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
