"""Measuring, exporting and optimizing networks of any signature."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import paretorch as pt
from paretorch.deploy import measure_latency
from paretorch.deploy.calibrate import activation_ranges
from paretorch.deploy.measure import latency as latency_module
from paretorch.errors import ConfigError
from paretorch.support.inputs import named_tensors, read_example
from tests.core.test_signatures import TOKENS, bert, llama
from tests.support.signatures import SIGNATURES, ZERO, Named, Nested, Plain, Two, X

_NAMES = [
    (["input"], ["output"]),
    (["input"], ["output"]),
    (["x", "shift"], ["scores", "doubled"]),
    (["x", "shift"], ["scores", "doubled"]),
    (["x", "shift"], ["scores", "doubled"]),
    (["pixels"], ["logits"]),
    (["given_0", "given_1"], ["logits"]),
]


def run(path: Path, call: Any, model: nn.Module) -> dict[str, np.ndarray[Any, Any]]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feed = dict(zip(call.names(model), (tensor.numpy() for tensor in call.tensors), strict=True))
    return dict(zip([one.name for one in session.get_outputs()], session.run(None, feed), strict=True))


@pytest.mark.parametrize(
    ("kind", "example", "names"), [(*one, names) for one, names in zip(SIGNATURES, _NAMES, strict=True)]
)
def test_onnx_files_have_the_names_of_the_signature(
    kind: type[Plain], example: Any, names: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    model = kind().eval()
    path = pt.export_onnx(model, example, tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert ([one.name for one in session.get_inputs()], [one.name for one in session.get_outputs()]) == names
    assert {one.shape[0] for one in session.get_inputs()} == {"batch"}
    call = read_example(example).rows(lambda rows: torch.cat([rows, 2 * rows, rows]))
    found, expected = run(path, call, model), named_tensors(call(model))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_allclose(found[name], tensor.detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("build", [bert, llama])
def test_onnx_files_of_transformers(build: Any, tmp_path: Path) -> None:
    model = build()
    path = pt.export_onnx(model, TOKENS, tmp_path / "net.onnx")
    call = read_example(TOKENS).rows(lambda rows: torch.cat([rows, rows[:1]]))
    call.kwargs["attention_mask"][1, 3:] = 0
    found = run(path, call, model)
    assert list(found) == ["logits"], "and no cache"
    np.testing.assert_allclose(found["logits"], call(model).logits.detach().numpy(), atol=1e-5)


class Twice(nn.Module):
    """An output twice, an input as output with its name, and an input that is not read."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(3))

    def forward(self, weight: Tensor, unread: Tensor) -> dict[str, Tensor]:
        made = weight @ self.weight
        return {"made": made, "again": made, "weight": weight}


def test_onnx_names_never_collide(tmp_path: Path) -> None:
    x = torch.randn(2, 3)
    path = pt.export_onnx(Twice(), (x, torch.zeros(2)), tmp_path / "net.onnx")
    found = run(path, read_example((x, torch.zeros(2))), Twice())
    assert list(found) == ["made", "again", "output_weight"]
    assert all(np.allclose(one, x.numpy()) for one in found.values())


class Fixed(nn.Module):
    """An input without a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x) + table.sum(0), table


def test_an_input_without_a_batch_keeps_its_shape(tmp_path: Path) -> None:
    path = pt.export_onnx(Fixed(), (torch.randn(4, 3), torch.randn(5, 2)), tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [one.shape for one in session.get_inputs()] == [["batch", 3], [5, 2]]


class Wrong(nn.Module):
    """The second output depends on what the exporter does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(3, 2), 0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        out = self.layer(x)
        return out, out * self.calls


def test_every_output_is_compared(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="onnxruntime's output_1 differs from torch's"):
        pt.export_onnx(Wrong(), torch.randn(2, 3), tmp_path / "net.onnx")
    assert not any(tmp_path.iterdir())


LABELS = torch.arange(4)


@pytest.mark.parametrize(
    ("kind", "example", "loader"),
    [
        (Plain, X, [(X, LABELS)]),
        (Two, (X, ZERO), [(X, ZERO, LABELS)]),
        (Two, (X, ZERO), [{"shift": ZERO, "x": X}]),
        (Named, {"pixels": X, "scale": 1.0}, [{"labels": LABELS % 3, "pixels": X}]),
        (Two, {"x": X, "shift": ZERO}, [{"labels": LABELS, "shift": ZERO, "x": X}]),
        (Nested, ({"pair": (X, ZERO)},), [({"pair": (X, ZERO)}, LABELS)]),
    ],
)
def test_int8_is_calibrated_by_batches_of_any_signature(
    kind: type[Plain], example: Any, loader: list[Any], tmp_path: Path
) -> None:
    model = kind().eval()
    path = pt.export_onnx(model, example, tmp_path / "net.onnx", calibrate=loader, percentile=99.9)
    found = next(iter(run(path, read_example(example), model).values()))
    np.testing.assert_allclose(found, Plain().eval()(X).detach().numpy(), atol=0.05)
    assert activation_ranges(model, loader) == activation_ranges(Plain(), [X])


def test_batches_without_an_input_raise(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="A batch has 1 parts, and Two takes 2 arguments in the example"):
        pt.export_onnx(Two(), (X, ZERO), tmp_path / "net.onnx", calibrate=[(X,)])
    with pytest.raises(ConfigError, match="Calibration needs batches of inputs: a list or a loader"):
        pt.export_onnx(Two(), (X, ZERO), tmp_path / "net.onnx", calibrate={"x": X})
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(("kind", "example"), SIGNATURES)
def test_reports_count_what_they_count_of_a_tensor(kind: type[Plain], example: Any) -> None:
    assert pt.report(kind(), example=example, latency=False).macs == pt.report(Plain(), example=X, latency=False).macs


@pytest.mark.parametrize("build", [bert, llama])
def test_reports_on_transformers(build: Any) -> None:
    found, expected = (
        pt.report(build(), example=example, latency=False).macs for example in (TOKENS, TOKENS["input_ids"])
    )
    assert found == expected
    assert found is not None


@pytest.mark.parametrize(("kind", "example"), [SIGNATURES[2], SIGNATURES[6]])
def test_latency_is_measured_in_a_process_of_its_own(
    kind: type[Plain], example: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latency_module, "find_spec", lambda name: None if name == "onnxscript" else object())
    (found,) = measure_latency(kind(), example, rounds=1, seconds=0.001, threads=1)
    assert (found.isolated, found.batch, found.runtime) == (True, 4, "torch")


def test_latency_of_a_transformer_under_both_runtimes() -> None:
    found = measure_latency(bert(), TOKENS, rounds=1, seconds=0.001, threads=1)
    assert [(one.runtime, one.isolated, one.batch) for one in found] == [("torch", True, 2), ("onnxruntime", True, 2)]


@pytest.mark.parametrize(("kind", "example"), SIGNATURES)
def test_optimize_takes_any_signature(kind: type[Plain], example: Any) -> None:
    model = kind().eval()
    with torch.no_grad():
        model.head.weight[:, 1:] = 0.0
    fast, summary = pt.optimize(
        model, example, timer=lambda calls: {name: [1.0 if name in ("csr", "after") else 2.0] * 3 for name in calls}
    )
    assert summary.changed, summary
    assert [choice.chosen for choice in summary.choices] == ["csr"]
    found, expected = (named_tensors(read_example(example)(one)) for one in (fast, model))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor)


@pytest.mark.parametrize(
    ("kind", "batch"),
    [
        (Plain, lambda y: (X, y)),
        (Two, lambda y: (X, ZERO, y)),
        (Two, lambda y: ({"x": X, "shift": ZERO}, y)),
        (Named, lambda y: {"pixels": X, "labels": y}),
        (Nested, lambda y: (({"pair": (X, ZERO)},), y)),
    ],
)
def test_accuracy_is_measured_whatever_the_signature(kind: type[Plain], batch: Any) -> None:
    classes = Plain().eval()(X).argmax(1)
    classes[0] = (classes[0] + 1) % 3
    assert pt.report(kind(), data=[batch(classes)]).accuracy == pytest.approx(0.75)


def test_data_without_classes_raises() -> None:
    with pytest.raises(ConfigError, match="inputs and their classes: a dict has no 'labels'"):
        pt.report(Named(), data=[{"pixels": X}])
