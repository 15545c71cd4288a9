"""Export to ONNX: weights packed to the bits that they need, or int8 throughout."""

from paretorch.deploy.onnx.export import export_onnx

__all__ = ["export_onnx"]
