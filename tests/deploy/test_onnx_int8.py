"""int8 networks: values on a grid are kept, channels of zeros do no harm, accuracy is that of the module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from paretorch import SMOL, ContinuousSparsification, compress, export_onnx
from paretorch.deploy.onnx.int8 import narrow, share_codes, weight_steps
from paretorch.deploy.onnx.pack import finished
from paretorch.zoo.data import digits
from tests.deploy.onnx_nets import constants, loaded, on_grid, opset, run, settle, types


def _accuracy(outputs: np.ndarray | Tensor, labels: Tensor) -> float:
    return float((torch.as_tensor(outputs).argmax(1) == labels).float().mean())


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A digits network with half its channels removed and low-bit weights."""
    torch.manual_seed(0)
    data = digits.load()
    (train_x, train_y), (test_x, test_y) = data.train, data.test
    train_x, test_x = (x.float() / 255 for x in (train_x, test_x))
    model = nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(24, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.Flatten(),
        nn.Linear(24 * 16, 10),
    )  # fmt: skip
    epochs, batches = 5, list(zip(train_x.split(64), train_y.split(64), strict=True))
    methods = ContinuousSparsification(target=0.3, group="channel"), SMOL(target_bits=3.0)
    plan = compress(model, *methods, steps=4 * len(batches), example=train_x[:2])
    optimizer = torch.optim.Adam(plan.param_groups(), lr=5e-3)
    for epoch in range(epochs):
        if epoch == 4:
            plan.harden(optimizer)
        for x, y in batches:
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            plan.step()
            optimizer.zero_grad()
    return plan.finalize().eval(), train_x, test_x, test_y


def test_files_of_a_compressed_network_have_its_accuracy(
    trained: tuple[nn.Module, Tensor, Tensor, Tensor], tmp_path: Path
) -> None:
    model, train_x, test_x, test_y = trained
    assert model[0].out_channels < 24
    with torch.no_grad():
        wanted = _accuracy(model(test_x), test_y)
    assert wanted > 0.8
    packed = export_onnx(model, test_x[:4], tmp_path / "packed.onnx")
    small = export_onnx(model, test_x[:4], tmp_path / "int8.onnx", calibrate=train_x[:512].split(128))
    assert _accuracy(run(packed, test_x), test_y) == pytest.approx(wanted, abs=0.001)
    assert _accuracy(run(small, test_x), test_y) == pytest.approx(wanted, abs=0.01)
    assert "FLOAT" not in types(small).values()
    assert loaded(small)["QLinearConv"] == 2


@pytest.fixture(scope="module")
def few_bits(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)
    )
    on_grid(model[0].weight, 3)
    on_grid(model[4].weight, 1)
    with torch.no_grad():
        model[0].weight[3] = 0.0
    settle(model)
    path = tmp_path_factory.mktemp("int8") / "net.onnx"
    return model, export_onnx(model, torch.randn(2, 3, 6, 6), path, calibrate=[torch.randn(200, 3, 6, 6)])


def test_weights_on_a_grid_keep_their_values(few_bits: tuple[nn.Module, Path]) -> None:
    model, path = few_bits
    found = constants(path)
    head = found["4.weight_quantized.codes"].astype(np.float32) * found["4.weight_scale"][:, None]
    np.testing.assert_array_equal(head, model[4].weight.detach().numpy())
    factor = model[1].weight / (model[1].running_var + 1e-5).sqrt()
    wanted = (model[0].weight * factor[:, None, None, None]).detach().numpy()
    (codes,) = (name for name, values in found.items() if values.shape == (16, 3, 3, 3))
    scale = found[codes.removesuffix("_quantized.codes") + "_scale"]
    got = found[codes].astype(np.float32) * scale[:, None, None, None]
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_few_codes_are_stored_in_few_bits_and_run_as_integers(few_bits: tuple[nn.Module, Path]) -> None:
    _, path = few_bits
    assert sorted(types(path).values()) == ["INT2", "INT4"]
    assert opset(path) == 25
    assert {"QLinearConv", "QGemm"} <= set(loaded(path))
    assert "Conv" not in loaded(path)


def test_outputs_are_near_those_of_the_module(few_bits: tuple[nn.Module, Path]) -> None:
    model, path = few_bits
    x = torch.randn(50, 3, 6, 6)
    wanted = model(x).detach().numpy()
    assert np.abs(run(path, x) - wanted).max() < 0.05 * np.abs(wanted).max()


def test_folded_norms_do_not_change_precisions(tmp_path: Path) -> None:
    """Steps are real numbers as LSQ learns them, and norms multiply every channel by a number of its own."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 24, 3, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 16, 3), nn.BatchNorm2d(16)
    )
    with torch.no_grad():
        for layer in (model[0], model[3]):
            layer.weight.copy_((torch.randn(layer.weight.shape) * 3).round().clamp(-7, 7) * 0.0371)
    settle(model)
    batches = [torch.randn(100, 3, 8, 8)]
    path = export_onnx(model, torch.randn(2, 3, 8, 8), tmp_path / "net.onnx", calibrate=batches)
    assert sorted(types(path).values()) == ["INT4", "INT4"]


def test_a_channel_on_no_grid_does_not_affect_the_others() -> None:
    values = np.random.default_rng(0).integers(-8, 8, (4, 60)).astype(np.float32) * np.float32(0.3)
    values[1] = np.random.default_rng(1).normal(size=60)
    values[2, :2] = [np.float32(200) * np.float32(0.3), np.float32(0.3)]  # nine bits
    steps = weight_steps(values, 0)
    np.testing.assert_array_equal(steps[[0, 3]], np.float32(0.3))
    np.testing.assert_allclose(steps[[1, 2]], np.abs(values[[1, 2]]).max(1) / 127, rtol=1e-6)


def test_steps_of_other_weights_are_by_the_largest_and_zeros_have_one_too() -> None:
    values = np.random.default_rng(0).normal(size=(4, 400)).astype(np.float32)
    values[2] = 0.0
    steps = weight_steps(values, 0)
    np.testing.assert_allclose(steps[[0, 1, 3]], np.abs(values[[0, 1, 3]]).max(1) / 127, rtol=1e-6)
    assert steps[2] == np.median(steps[[0, 1, 3]])
    assert weight_steps(np.zeros((2, 3), dtype=np.float32), 1).tolist() == [1.0, 1.0, 1.0]


def _codes(*tensors: np.ndarray) -> Any:
    """A model that gives int8 tensors, each dequantized by a step of 1."""
    nodes = [helper.make_node("DequantizeLinear", [f"w{i}", "one"], [f"y{i}"]) for i in range(len(tensors))]
    outputs = [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, t.shape) for i, t in enumerate(tensors)]
    constants = [numpy_helper.from_array(tensor, f"w{i}") for i, tensor in enumerate(tensors)]
    one = numpy_helper.from_array(np.array(1.0, dtype=np.float32), "one")
    graph = helper.make_graph(nodes, "codes", [], outputs, [*constants, one])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)])


def _dequantized(model: Any) -> list[np.ndarray]:
    return list(onnxruntime.InferenceSession(finished(model).SerializeToString()).run(None, {}))


def _left(model: Any) -> int:
    return sum(len(tensor.dims) > 1 and not tensor.name.endswith(".signs") for tensor in model.graph.initializer)


def test_codes_that_differ_by_signs_or_ties_are_one_and_others_are_not() -> None:
    random = np.random.default_rng(0)
    first = random.integers(-100, 100, (8, 4, 500)).astype(np.int8)
    flipped = first * np.where(random.random((8, 1, 1)) < 0.5, -1, 1).astype(np.int8)
    tie, far, other = first.copy(), first.copy(), random.permutation(first)
    tie[3, 2, 1] += 1
    far[3, 2, 1] += 2
    model = _codes(first, flipped, tie, far, other)
    assert share_codes(model) == 2 * first.size
    assert _left(model) == 3
    found = _dequantized(model)
    for got, wanted in zip(found, (first, flipped, first, far, other), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_narrow_codes_are_restored() -> None:
    random = np.random.default_rng(0)
    shape = (16, 500)
    few = random.integers(-2, 2, shape), random.integers(-8, 8, shape), random.integers(-32, 32, shape)
    odd = 2 * random.integers(-2, 2, shape) + 1, 2 * random.integers(-32, 32, shape) + 1
    wide = random.integers(-128, 128, shape)
    tensors = [values.astype(np.int8) for values in (*few, *odd, wide)]
    model = _codes(*tensors)
    before = len(model.SerializeToString())
    narrow(model)
    bits = 2 + 4 + 6 + 2 + 6 + 8
    assert before - len(model.SerializeToString()) == pytest.approx((6 * 8 - bits) / 8 * 8000, rel=0.1)
    for got, wanted in zip(_dequantized(model), tensors, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_transposed_convolutions_of_several_groups_have_one_step_and_their_bias(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.ConvTranspose2d(4, 8, 2, groups=2), nn.ReLU()).eval()
    x = torch.randn(8, 4, 5, 5)
    for weight in (model[0].weight.detach(), torch.randint(-3, 4, (4, 4, 2, 2)) * 0.125):
        model[0].weight.data.copy_(weight)
        path = export_onnx(model, x[:2], tmp_path / "net.onnx", calibrate=[x])
        with torch.no_grad():
            wanted = model(x)
        assert float((torch.from_numpy(run(path, x)) - wanted).abs().max()) < 0.02 * float(wanted.max())


class Matrices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 8, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def test_several_matrices_in_one_weight_have_one_step(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Matrices(), torch.randn(5, 3, 4, 8)
    path = export_onnx(model, x, tmp_path / "net.onnx", calibrate=[x])
    with torch.no_grad():
        wanted = model(x)
    assert float((torch.from_numpy(run(path, x)) - wanted).abs().max()) < 0.02 * float(wanted.abs().max())


def test_a_percentile_of_batches_of_any_size(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval(), torch.randn(21, 3, 6, 6)
    x[20] *= 3  # seen only if the last batch, of one, is
    with torch.no_grad():
        wanted = model(x)
    apart = {}
    for name, batches in {"all": x.split(4), "but the last": x[:20].split(4)}.items():
        path = export_onnx(model, x[:2], tmp_path / "net.onnx", calibrate=batches, percentile=99.99)
        apart[name] = float((torch.from_numpy(run(path, x)) - wanted).abs().max())
    assert apart["all"] < 0.1 * float(wanted.max()) < apart["but the last"]


@pytest.mark.parametrize("largest", [1, 2, 3, 7])
def test_few_different_codes_stay_small_under_norms(largest: int, tmp_path: Path) -> None:
    """A product that was rounded twice is no exact multiple of a step, unless codes are made larger by chance."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 24, 3, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 16, 3))
    with torch.no_grad():
        for layer in (model[0], model[3]):
            steps = torch.rand(len(layer.weight), 1, 1, 1) * 0.05 + 0.01
            layer.weight.copy_((torch.randn(layer.weight.shape) * largest).round().clamp(-largest, largest) * steps)
    settle(model)
    path = export_onnx(model, torch.randn(2, 3, 8, 8), tmp_path / "net.onnx", calibrate=[torch.randn(100, 3, 8, 8)])
    kinds = {1: "INT2", 2: "INT4", 3: "INT4", 7: "INT4"}
    assert set(types(path).values()) <= {kinds[largest], "INT4"}
