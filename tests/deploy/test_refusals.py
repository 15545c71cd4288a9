"""Anything but a finished network, a file or a batch raises one clear sentence, and nothing is written or changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import paretorch as pt
from paretorch.deploy import measure_latency, sizes
from paretorch.errors import ArtefactError, ConfigError


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval()


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize(
    "use",
    [
        lambda model, path: pt.save(model, path),
        lambda model, path: sizes(model),
        lambda model, path: pt.report(model),
        lambda model, path: pt.export_onnx(model, torch.randn(2, 4), path),
    ],
)
def test_a_network_that_is_still_being_compressed(
    use: Callable[[nn.Module, Path], Any], hard: bool, tmp_path: Path
) -> None:
    model = net()
    plan = pt.compress(model, pt.SMOL(target_bits=2.0), steps=4)
    if hard:
        plan.harden()
    with pytest.raises(ConfigError, match=r"still being compressed: plan\.finalize\(\) first"):
        use(model, tmp_path / "x")
    assert not any(tmp_path.iterdir())
    use(plan.finalize(), tmp_path / "x")


@pytest.mark.parametrize(
    "use",
    [
        lambda model, path: pt.save(model, path),
        lambda model, path: pt.save(model, path, fold_norms=True),
        lambda model, path: pt.report(model),
        lambda model, path: pt.export_onnx(model, torch.randn(2, 4), path),
    ],
)
def test_a_weight_that_is_a_tensor_subclass(use: Callable[[nn.Module, Path], Any], tmp_path: Path) -> None:
    """torchao's `quantize_` leaves such weights: their values are in inner tensors."""
    model = net()
    whole = model[2].weight.detach()
    model[2].weight = nn.Parameter(TwoTensor(whole, whole))
    with pytest.raises(ConfigError, match=r"2\.weight is a TwoTensor, .* as dequantize\(\) returns them"):
        use(model, tmp_path / "x")
    assert not any(tmp_path.iterdir())
    model[2].weight = nn.Parameter(whole)
    use(model, tmp_path / "x")


def test_anything_but_a_module(tmp_path: Path) -> None:
    pt.save(net(), tmp_path / "x.pare")
    for use in (
        lambda: pt.save(3, tmp_path / "y.pare"),  # type: ignore[arg-type]
        lambda: pt.load(tmp_path / "x.pare", into=nn.Linear),  # type: ignore[arg-type]
        lambda: pt.export_onnx("net", torch.randn(2, 4), tmp_path / "y.onnx"),  # type: ignore[arg-type]
        lambda: pt.optimize("net", torch.randn(2, 4)),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError, match="takes a module, not"):
            use()


@pytest.mark.parametrize("wrap", [lambda model: torch.compile(model, backend="eager"), nn.DataParallel])
def test_wrappers_of_a_network_are_not_in_its_file(wrap: Callable[[nn.Module], nn.Module], tmp_path: Path) -> None:
    wrapped, x = wrap(net()), torch.randn(2, 4)
    pt.save(wrapped, tmp_path / "x.pare")
    pt.save(net(), tmp_path / "y.pare")
    assert (tmp_path / "x.pare").read_bytes() == (tmp_path / "y.pare").read_bytes()
    other = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval()
    filled = wrap(other)
    assert pt.load(tmp_path / "x.pare", into=filled) is filled
    assert torch.equal(other(x), net()(x))
    assert [layer.name for layer in pt.report(wrapped).layers] == ["0.weight", "2.weight"]
    assert pt.export_onnx(wrapped, x, tmp_path / "x.onnx").exists()


def test_a_buffer_that_is_in_no_file_is_not_left_without_memory(tmp_path: Path) -> None:
    pt.save(net(), tmp_path / "x.pare")
    with torch.device("meta"):
        bare = net()
        bare.register_buffer("positions", torch.arange(4), persistent=False)
    with pytest.raises(ConfigError, match=r"positions has no memory .*compute it"):
        pt.load(tmp_path / "x.pare", into=bare)
    assert all(one.is_meta for one in bare.parameters())
    bare.positions = torch.arange(4)
    x = torch.randn(2, 4)
    assert torch.equal(pt.load(tmp_path / "x.pare", into=bare)(x), net()(x))


def test_folders_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match=r"is a folder: give the file in it, such as .*model\.pare"):
        pt.load(tmp_path)
    with pytest.raises(ConfigError, match=r"is a folder: give the file, such as .*model\.onnx"):
        pt.export_onnx(net(), torch.randn(2, 4), tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_summary_has_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give plain JSON values by name"):
        pt.save(net(), tmp_path / "x.pare", summary=[0.9])  # type: ignore[arg-type]


@pytest.mark.parametrize("accuracy", [91.2, -0.1, float("nan"), "0.9"])
def test_an_accuracy_is_a_fraction(accuracy: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"accuracy=.*: give a fraction, such as 0\.912"):
        pt.report(net(), accuracy=accuracy)
    pt.save(net(), tmp_path / "x.pare", summary={"accuracy": 91.2})
    assert pt.report(tmp_path / "x.pare").accuracy is None, "a file may hold anything"


@pytest.mark.parametrize("example", [[1.0], torch.tensor(1.0), torch.empty(0, 4)])
def test_an_example_is_a_batch(example: Any) -> None:
    with pytest.raises(ConfigError, match="first dimension is the batch"):
        pt.report(net(), example=example)
    with pytest.raises(ConfigError, match="give a batch of inputs"):
        pt.optimize(net(), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tolerance": -1.0}, "tolerance=-1.0"),
        ({"tolerance": "1"}, "tolerance='1'"),
        ({"calibrate": 5}, "a list or a loader of tensors"),
        ({"calibrate": torch.randn(4, 4)}, "a list or a loader of tensors"),
        ({"calibrate": [torch.randn(2, 5)]}, "cannot calibrate with these batches"),
    ],
)
def test_what_onnx_cannot_be_asked(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        pt.export_onnx(net(), torch.randn(2, 4), tmp_path / "x.onnx", **options)
    assert not any(tmp_path.iterdir())


def test_half_precision_is_exported_and_bfloat16_is_refused(tmp_path: Path) -> None:
    example = torch.randn(2, 4)
    assert pt.export_onnx(net().half(), example.half(), tmp_path / "x.onnx").exists()
    with pytest.raises(ConfigError, match=r"export model\.float\(\)"):
        pt.export_onnx(net().bfloat16(), example.bfloat16(), tmp_path / "y.onnx")


def test_the_reason_is_told_and_not_how_to_report_a_bug(tmp_path: Path) -> None:
    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(ConfigError, match=r"Branching cannot be exported to ONNX: .*data-dependent"):
        pt.export_onnx(Branching(), torch.randn(2, 4), tmp_path / "x.onnx")


def test_an_error_is_one_sentence_and_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.linear(x)
            return y if y.sum() > 0 else -y

    with pytest.raises(ConfigError, match="cannot be exported") as told:
        pt.export_onnx(Branching(), torch.randn(2, 4), tmp_path / "x.onnx")
    measure_latency(Branching(), torch.randn(2, 4), rounds=1, seconds=0.001)
    assert "\n" not in str(told.value)
    assert capfd.readouterr() == ("", "")


class Held(nn.Module):
    """Keeps what it computed, as many modules do: with a gradient it cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last: torch.Tensor = self.linear(x)
        return self.last


def test_what_cannot_be_copied_is_said(tmp_path: Path) -> None:
    model, x = Held(), torch.randn(2, 4)
    model(x)
    for use in (
        lambda: pt.export_onnx(model, x, tmp_path / "x.onnx"),
        lambda: pt.optimize(model, x),
        lambda: measure_latency(model, x, rounds=1, seconds=0.001),
    ):
        with pytest.raises(ConfigError, match="works on a copy, and this Held cannot be copied: Only Tensors"):
            use()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((torch.zeros(3, 4), torch.zeros(3, 1)), r"classes of shape \(3, 1\) for outputs of \(3, 3\)"),
        ((torch.zeros(3, 4), torch.eye(3)), r"classes of shape \(3, 3\)"),
        ((torch.zeros(4), torch.zeros(4)), "batches of inputs and their classes"),
        ((torch.zeros(3, 4), [0, 1, 2]), "not Tensor and list but tensors"),
        ((1, 2), "not int and int but tensors"),
    ],
)
def test_data_has_a_class_for_every_input(batch: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pt.report(net(), data=[batch])


def test_a_baseline_is_a_module() -> None:
    with pytest.raises(ConfigError, match="baseline= takes a module, not int"):
        pt.report(net(), baseline=3)  # type: ignore[arg-type]


def test_percentiles_are_found_without_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batches = [torch.randn(4, 4) for _ in range(2)]
    pt.export_onnx(net(), batches[0], tmp_path / "x.onnx", calibrate=batches, percentile=99.9)
    assert capsys.readouterr().out == ""


def test_what_could_not_be_loaded_again_is_not_saved(tmp_path: Path) -> None:
    path = tmp_path / "x.pare"
    with pytest.raises(ConfigError, match=r"more than an artefact holds .* give a smaller summary"):
        pt.save(net(), path, summary={"log": [0] * 1_000_000})
    deep = net()
    deep.register_buffer("deep", torch.ones([1] * 17))
    with pytest.raises(ConfigError, match=r"deep has 17 dimensions, and an artefact holds up to 16"):
        pt.save(deep, path)
    assert not any(tmp_path.iterdir())
    pt.save(net(), path, summary={"log": list(range(100_000))})
    pt.load(path, into=net())
