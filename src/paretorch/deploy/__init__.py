"""A finalized network as a file: small on disk, measured, exported to other runtimes.

artefact     `save` and `load`: one small file. codec/ is its format, `norms` prepares norm layers, `filling` fills modules
measure/     sizes, MACs and latency, and the record that a report is made of
fast/        `optimize`: faster layers, if they are measured to be faster
packed/      weights of 2, 4 or 8 bits that stay packed in memory on a CPU
onnx/        `export_onnx`. `calibrate` measures ranges of activations
runtimes/    the formats of inference runtimes, what `runtime=` restricts methods to, and GGUF files; `export` writes for any of them
rivals/      files that other tools would write, to compare with
"""

from typing import TYPE_CHECKING

from paretorch.support.lazy_names import import_lazily

if TYPE_CHECKING:
    from paretorch.deploy.artefact import encoded_size, load, save, sizes
    from paretorch.deploy.codec.sizes import Sizes, TensorSize
    from paretorch.deploy.export import export
    from paretorch.deploy.fast import Optimized, optimize
    from paretorch.deploy.measure.latency import Latency, measure_latency
    from paretorch.deploy.measure.record import Report
    from paretorch.deploy.onnx import export_onnx

__all__ = [
    "Latency",
    "Optimized",
    "Report",
    "Sizes",
    "TensorSize",
    "encoded_size",
    "export",
    "export_onnx",
    "load",
    "measure_latency",
    "optimize",
    "save",
    "sizes",
]

import_lazily(
    __name__,
    {
        "artefact": ("encoded_size", "load", "save", "sizes"),
        "codec.sizes": ("Sizes", "TensorSize"),
        "export": ("export",),  # the function, over the module of the same name
        "fast": ("Optimized", "optimize"),
        "measure.latency": ("Latency", "measure_latency"),
        "measure.record": ("Report",),
        "onnx": ("export_onnx",),
    },
)
