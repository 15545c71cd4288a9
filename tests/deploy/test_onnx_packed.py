"""Weights in few bits: exact, folded when the file is loaded; others stay fp32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from paretorch.deploy import export_onnx
from paretorch.deploy.onnx import pack as onnx_pack
from paretorch.errors import ConfigError
from paretorch.methods.precision.grid import quantize
from tests.deploy.onnx_nets import Mixed, constants, loaded, on_grid, operators, opset, run, settle, types

_X = torch.randn(3, 3, 4, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One network in two forms."""
    folder = tmp_path_factory.mktemp("onnx")
    return {form: export_onnx(Mixed(), _X, folder / f"{form}.onnx", weights=form) for form in ("packed", "fp32")}


def test_each_weight_has_the_narrowest_integers_that_hold_it(files: dict[str, Path]) -> None:
    found = types(files["packed"])
    wanted = {"one": "INT2", "two": "INT4", "up": "INT4", "step": "INT2", "head": "INT8"}
    assert {name: found[f"{name}.weight.codes"] for name in wanted} == wanted
    assert found["dense.weight"] == "FLOAT"
    assert opset(files["packed"]) == 25


def test_codes_times_steps_are_the_weights_to_the_last_bit(files: dict[str, Path]) -> None:
    found, model = constants(files["packed"]), Mixed()
    head = found["head.weight.codes"].astype(np.float32) * found["head.weight.steps"]
    np.testing.assert_array_equal(head, model.head.weight.detach().numpy())
    # The steps are powers of two: what the norm does to step or weight is the same number.
    factor = (model.norms[0].weight / (model.norms[0].running_var + 1e-5).sqrt()).detach().numpy()
    one = found["one.weight.codes"].astype(np.float32) * found["one.weight.0.steps"]
    np.testing.assert_allclose(one, model.one.weight.detach().numpy() * factor[:, None, None, None], rtol=1e-6)
    np.testing.assert_array_equal(found["dense.weight"], model.dense.weight.detach().numpy())


def test_norms_go_into_the_steps(files: dict[str, Path]) -> None:
    for path in files.values():
        assert "BatchNormalization" not in operators(path)
    assert not any("running" in name for name in constants(files["packed"]))


def test_outputs_are_those_of_the_module_at_any_batch(files: dict[str, Path]) -> None:
    x = torch.randn(7, 3, 4, 4)
    expected = Mixed()(x).detach().numpy()
    for path in files.values():
        np.testing.assert_allclose(run(path, x), expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


def test_packed_files_are_loaded_into_the_network_of_the_fp32_file(files: dict[str, Path]) -> None:
    assert operators(files["packed"])["Cast"] == 5
    assert loaded(files["packed"]) == loaded(files["fp32"])


def test_files_are_valid_and_small_and_describe_their_weights(files: dict[str, Path]) -> None:
    for path in files.values():
        onnx.checker.check_model(onnx.load(path), full_check=True)
        assert b".py" not in path.read_bytes()  # nor where in the source an operation came from
    sizes = {form: path.stat().st_size for form, path in files.items()}
    assert sizes["packed"] < 0.6 * sizes["fp32"]
    told = {entry.key: entry.value for entry in onnx.load(files["packed"]).metadata_props}
    assert told == {"paretorch": "weights: 1 FLOAT, 2 INT2, 2 INT4, 1 INT8"}


def _wide(precision: int, scale: float = 0.125) -> nn.Linear:
    torch.manual_seed(1)
    layer = nn.Linear(20, 40)
    on_grid(layer.weight, precision, scale)
    return layer


def test_no_later_opset_than_the_types_need(tmp_path: Path) -> None:
    eight = export_onnx(_wide(6), torch.randn(2, 20), tmp_path / "eight.onnx")
    assert (opset(eight), types(eight)) == (20, {"weight.codes": "INT8"})


def test_qdq_files_say_it_with_dequantize_linear_and_scales_above_zero(tmp_path: Path) -> None:
    layers = settle(nn.Sequential(_wide(3), nn.BatchNorm1d(40), nn.Linear(40, 40), nn.BatchNorm1d(40)))
    on_grid(layers[2].weight, 3)
    with torch.no_grad():
        layers[1].weight.abs_().add_(0.1)
    path = export_onnx(layers, torch.randn(2, 20), tmp_path / "four.onnx", weights="qdq")
    assert (opset(path), set(types(path).values())) == (21, {"INT4"})
    assert operators(path) == {"DequantizeLinear": 2, "Gemm": 2, "BatchNormalization": 1}
    found = constants(path)
    assert found["0.weight.0.steps"].shape == (40,)
    assert all((values > 0).all() for name, values in found.items() if name.endswith(".steps"))


def test_a_runtime_without_narrow_integers_gets_wider_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_pack, "runs", lambda width, form: width == 8)
    path = export_onnx(_wide(1), torch.randn(2, 20), tmp_path / "net.onnx")
    assert (opset(path), types(path)) == (20, {"weight.codes": "INT8"})


def test_widths_between_the_types_are_two_tensors(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    for layer, precision in zip(layers, (5, 9), strict=True):
        on_grid(layer.weight, precision)
    path = export_onnx(layers, torch.randn(2, 64), tmp_path / "net.onnx")
    found = types(path)
    assert [found[f"0.weight{part}"] for part in (".codes", ".low")] == ["INT4", "UINT2"]
    assert [found[f"1.weight{part}"] for part in (".codes", ".low")] == ["INT8", "UINT2"]
    assert b"weights: 1 INT4+UINT2, 1 INT8+UINT2" in path.read_bytes()
    values = constants(path)
    for i, layer in enumerate(layers):
        codes = 4 * values[f"{i}.weight.codes"].astype(np.int32) + values[f"{i}.weight.low"].astype(np.int32)
        product = codes.astype(np.float32) * values[f"{i}.weight.steps"]
        np.testing.assert_array_equal(product, layer.weight.detach().numpy())
    assert set(loaded(path)) == {"Gemm"}


def test_odd_codes_are_stored_without_their_lowest_bit(tmp_path: Path) -> None:
    """Where a channel has one precision and no zeros, p bits take p bits: 2 are INT2, and 6 are INT4 and UINT2."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 64))
    with torch.no_grad():
        p = torch.tensor([1, 2] * 32, dtype=torch.int32)[:, None]
        layers[0].weight.copy_(quantize(torch.randn(64, 64), p) * 0.25)
        layers[2].weight.copy_(quantize(torch.randn(64, 64), torch.tensor(6, dtype=torch.int32)) * 0.25)
    settle(layers)
    path = export_onnx(layers, torch.randn(2, 64), tmp_path / "net.onnx")
    assert b"weights: 1 INT2, 1 INT4+UINT2" in path.read_bytes()
    assert set(loaded(path)) == {"Gemm"}
    found = constants(path)
    digits = 4 * found["2.weight.codes"].astype(np.int32) + found["2.weight.low"].astype(np.int32)
    product = (2 * digits + 1).astype(np.float32) * found["2.weight.steps"]
    np.testing.assert_array_equal(product, layers[2].weight.detach().numpy())


def test_values_decide_and_not_what_was_once_noted(tmp_path: Path) -> None:
    layer = nn.Sequential(_wide(1), _wide(1))
    layer.__dict__["paretorch_edits"] = [{"kind": "scale", "weight": "0.weight", "exponent": 3}]
    with torch.no_grad():
        layer[0].weight[0, 0] = 0.1234567
    layer[1] = nn.Linear(40, 3)
    path = export_onnx(layer, torch.randn(2, 20), tmp_path / "net.onnx")
    assert set(types(path).values()) == {"FLOAT"}
    assert opset(path) == 20


class Words(nn.Module):
    """A tied embedding, an LSTM, a layer for every word: weights that are gathered, cut, transposed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(50, 16)
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.each = nn.Linear(16, 16)
        self.head = nn.Linear(16, 50)
        self.head.weight = self.words.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                on_grid(parameter, 1 if "lstm" in name else 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.each(self.lstm(self.words(x))[0]))


def test_gathered_cut_and_transposed_weights_are_packed_once(tmp_path: Path) -> None:
    path = export_onnx(Words().eval(), torch.randint(0, 50, (2, 5)), tmp_path / "words.onnx")
    found = {name: kind for name, kind in types(path).items() if name.endswith(".codes")}
    assert sorted(found.values()) == ["INT2", "INT2", "INT4", "INT4"]
    assert not any(name.startswith(("words.", "head.", "each.")) for name in types(path).keys() - found.keys())
    assert "Cast" not in loaded(path)


@pytest.mark.parametrize("form", ["packed", "qdq"])
def test_half_precision_is_packed_too(form: str, tmp_path: Path) -> None:
    """Codes times steps in fp32, rounded to fp16: the weights of the module, to the last bit; a norm stays a norm."""
    model, x = Mixed().half(), _X.half()
    path = export_onnx(model, x, tmp_path / "net.onnx", weights=form)
    found = types(path)
    wanted = {"one": "INT2", "two": "INT4", "up": "INT4", "step": "INT2", "head": "INT8"}
    assert {name: found[f"{name}.weight.codes"] for name in wanted} == wanted
    assert found["dense.weight"] == "FLOAT16"
    numbers = constants(path)
    for name in wanted:
        product = numbers[f"{name}.weight.codes"].astype(np.float32) * numbers[f"{name}.weight.steps"]
        np.testing.assert_array_equal(product.astype(np.float16), model.get_parameter(f"{name}.weight").detach())
    plain = export_onnx(model, x, tmp_path / "plain.onnx", weights="fp32")
    assert path.stat().st_size < plain.stat().st_size
    np.testing.assert_allclose(run(path, x), run(plain, x), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_one_step_per_value_is_not_used(dtype: torch.dtype, tmp_path: Path) -> None:
    """Any numbers are multiples of themselves; their steps are as many bytes as they are, or twice as many."""
    model, x = nn.Linear(1, 2000).to(dtype), torch.randn(3, 1).to(dtype)
    plain = export_onnx(model, x, tmp_path / "plain.onnx", weights="fp32")
    packed = export_onnx(model, x, tmp_path / "packed.onnx")
    assert packed.stat().st_size == plain.stat().st_size


def test_an_unknown_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='"packed", "qdq" or "fp32"'):
        export_onnx(nn.Linear(3, 2), torch.zeros(2, 3), tmp_path / "net.onnx", weights="int3")
