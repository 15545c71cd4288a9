"""A finalized network as a file: small on disk, measured, exported to other runtimes.

artefact     `save` and `load`: one small file;  codec/ is its format, `edits` and `norms` what happens before the bytes
measure/     sizes, MACs, accuracy, latency, and `report`, which returns them as one record
fast/        `optimize`: faster layers, if they were measured to be faster
onnx/        `export_onnx`;  calibrate: ranges of activations
rivals/      what other tools would write, to compare with
"""

from paretorch.deploy.artefact import encoded_size, load, save, sizes
from paretorch.deploy.codec.sizes import Sizes, TensorSize
from paretorch.deploy.fast import Optimized, optimize
from paretorch.deploy.measure.latency import Latency, measure_latency
from paretorch.deploy.measure.record import Report
from paretorch.deploy.measure.report import report
from paretorch.deploy.onnx import export_onnx

__all__ = [
    "Latency",
    "Optimized",
    "Report",
    "Sizes",
    "TensorSize",
    "encoded_size",
    "export_onnx",
    "load",
    "measure_latency",
    "optimize",
    "report",
    "save",
    "sizes",
]
