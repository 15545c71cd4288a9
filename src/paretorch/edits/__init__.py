"""Structural edits: what else happens to a network than new values. A closed set of typed objects.

A finished module lists its edits in `paretorch_edits`. A file stores the list as JSON, and `load` makes the same edits
on the module that it fills, so that the module gets the file's shapes. What edits put into a network (quantized
activations, weights mixed from shared tensors) are plain modules of this package.
"""

from paretorch.edits.edit import Edit, ModelInfo
from paretorch.edits.keep_channels import KeepChannels
from paretorch.edits.quantize_activation import QuantizeActivation
from paretorch.edits.quantized import QuantizedActivation
from paretorch.edits.registry import EDITS, edits_of, read_edits, write_edits
from paretorch.edits.scale import Scale
from paretorch.edits.share import Share

__all__ = [
    "EDITS",
    "Edit",
    "KeepChannels",
    "ModelInfo",
    "QuantizeActivation",
    "QuantizedActivation",
    "Scale",
    "Share",
    "edits_of",
    "read_edits",
    "write_edits",
]
