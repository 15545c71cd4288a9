"""ONNX files for onnxruntime and OpenVINO: weights as trained, outputs equal, bytes in proportion to the bits."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from torch import nn

import paretorch as pt
from paretorch.errors import ConfigError
from tests.deploy.runtimes.nets import Pictures, Words, batch_for, trained


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


@pytest.mark.parametrize("runtime", ["onnxruntime-int4", "onnxruntime-int8", "openvino"])
@pytest.mark.parametrize("network", [Words, Pictures])
def test_outputs_are_equal(runtime: str, network: type[nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    small = trained(network(), runtime)
    x = batch_for(small)
    path = pt.export_onnx(small, x, tmp_path / "model.onnx", runtime=runtime, tolerance=1e-5)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"input": x[:2].numpy()})
    assert np.allclose(found, small(x[:2]).detach().numpy(), atol=1e-4)


def test_weights_in_the_file_are_bit_for_bit_those_of_the_network(tmp_path: Path) -> None:
    """A product with the identity gives what MatMulNBits makes of its codes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 48, bias=False))
    small = pt.compress(model, pt.SMOL(), steps=1, runtime="onnxruntime-int4").finalize().eval()
    path = pt.export_onnx(small, torch.eye(256), tmp_path / "model.onnx", runtime="onnxruntime-int4")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"input": torch.eye(256).numpy()})
    assert np.array_equal(found, small[0].weight.detach().numpy().T)


@pytest.mark.parametrize("tied", [False, True])
def test_matrices_stay_packed_and_tied_ones_are_stored_once(tied: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    small = trained(Words(tied), "onnxruntime-int4")
    path = pt.export_onnx(small, batch_for(small), tmp_path / "model.onnx", runtime="onnxruntime-int4")
    found = operators(path)
    assert found["MatMulNBits"] == 3
    assert found["GatherBlockQuantized"] == 1
    weights = sum(p.numel() for p in {id(p): p for p in small.parameters() if p.dim() > 1}.values())
    assert path.stat().st_size <= 1.1 * weights * 4 / 8 + 4000
    (entry,) = onnx.load(path).metadata_props
    assert entry.value == f"weights: {3 if tied else 4} int4x128"


def test_openvino_reads_standard_operators_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    small = trained(Words(tied=True), "openvino")
    path = pt.export_onnx(small, batch_for(small), tmp_path / "model.onnx", runtime="openvino")
    assert {node.domain for node in onnx.load(path).graph.node} == {""}
    assert operators(path)["DequantizeLinear"] == 3


def test_two_bits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    small = trained(Words(), "onnxruntime-int4", pt.SMOL(target_bits=2.0))
    path = pt.export_onnx(small, batch_for(small), tmp_path / "model.onnx", runtime="onnxruntime-int4")
    (entry,) = onnx.load(path).metadata_props
    assert entry.value == "weights: 3 int2x128, 1 int4x128"


def test_a_weight_in_halves_takes_two_bytes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    method = pt.SMOL(overrides={"up*": {"format": "fp16"}})
    small = trained(Words(), "onnxruntime-int4", method)
    path = pt.export_onnx(small, batch_for(small), tmp_path / "model.onnx", runtime="onnxruntime-int4")
    half = [numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer if t.name.endswith(".half")]
    assert len(half) == 1
    assert np.array_equal(half[0].astype(np.float32), small.get_parameter("up.weight").detach().numpy())


def test_a_dense_network_keeps_its_values(tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = pt.export_onnx(Words().eval(), batch_for(Words()), tmp_path / "model.onnx", runtime="openvino")
    assert "4 FLOAT" in onnx.load(path).metadata_props[0].value


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"runtime": "gguf:Q4_0"}, "runtime='gguf:Q4_0' reads no ONNX file: use paretorch.export"),
        ({"runtime": "openvino", "weights": "qdq"}, "leave out weights='qdq'"),
        ({"runtime": "tvm"}, "runtime='tvm' is not known"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        pt.export_onnx(Words(), batch_for(Words()), tmp_path / "model.onnx", **options)  # type: ignore[arg-type]
