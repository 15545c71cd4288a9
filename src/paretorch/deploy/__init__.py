"""A finalized network as a file: small on disk, measured honestly, exported to other runtimes."""

from paretorch.deploy.artefact import encoded_size, load, save, sizes
from paretorch.deploy.fast import Optimized, optimize
from paretorch.deploy.measure.latency import Latency, measure_latency
from paretorch.deploy.measure.record import Report
from paretorch.deploy.measure.report import report
from paretorch.deploy.measure.sizes import Sizes, TensorSize
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
