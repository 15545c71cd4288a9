"""The report: sizes that add up, bits and MACs that can be checked by hand, text, JSON and HTML."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import paretorch as pt
from paretorch import SMOL, SMOLActivations, SoftSharing, compress, fold, zoo
from paretorch.deploy import Latency, save, sizes
from paretorch.deploy.measure.structure import count_macs
from paretorch.errors import ConfigError
from paretorch.methods.precision.rivals import LSQ, SLB, DoReFa, LQNets
from paretorch.methods.precision.rivals.rival import Rival
from paretorch.report import report
from paretorch.support.text import human


def small() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 10))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([0.0, 0.5, -1.5, -0.5])[torch.arange(72) % 4].reshape(4, 2, 3, 3))
        model[4].weight.copy_(torch.tensor([1.0, -1.0])[torch.randint(0, 2, (10, 16))])
    return model


def test_numbers_by_hand() -> None:
    found = report(small(), example=torch.randn(5, 2, 4, 4), accuracy=0.75, latency=False)
    assert found.weights == 72 + 160
    assert found.sparsity == pytest.approx(18 / 232)
    assert found.bits == pytest.approx((54 * 2 + 160 * 1) / 232)
    assert found.precisions == {0: 18, 1: 160, 2: 54}
    assert found.macs == 4 * 4 * 18 + 160  # 2 x 2 positions of 4 channels, 18 weights each; then 160
    assert found.macs_kept == round(288 * 0.75) + 160
    assert found.parameters == 72 + 4 + 2 * 4 + 160 + 10, "without the statistics of the norm"
    assert found.bits_on_disk > found.bits
    layers = sum(layer.size.total for layer in found.layers)
    assert layers < sum(size.total for size in found.sizes.tensors.values()) < found.sizes.total


def test_buffers_are_stored_and_are_no_parameters(tmp_path: Path) -> None:
    model = small()
    plain = report(model)
    model.register_buffer("mask", torch.triu(torch.ones(8, 8)))
    found = report(model)
    assert found.weights == plain.weights
    assert found.sparsity == plain.sparsity
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert "mask" in found.sizes.tensors
    assert found.sizes.total > plain.sizes.total
    path = tmp_path / "small.pare"
    save(small(), path)
    assert report(path).parameters == plain.parameters, "the file alone knows the statistics by their names"


def test_edits_give_the_exact_precision() -> None:
    model = nn.Sequential(nn.Linear(8, 8, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([0.5, -0.5]).repeat(32).reshape(8, 8))
    assert report(model).bits == 2.0  # on the grid within ±2; alone, ±0.5 would do with one bit at scale 2**-1
    model.paretorch_edits = [{"kind": "scale", "weight": "0.weight", "exponent": -1}]
    assert report(model).bits == 1.0
    model.paretorch_edits = [{"kind": "scale", "weight": "0.weight", "exponent": 3}]
    assert report(model).bits == 5.0


@pytest.mark.parametrize("scale", ["fit", "auto", 2, -2])
@pytest.mark.parametrize("zero_precision", [False, True])
def test_bits_are_those_of_the_plan(scale: str | int, zero_precision: bool, tmp_path: Path) -> None:
    """Whatever the scale, and however small the weights are beside it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 10))
    nn.init.normal_(model[1].weight, std=0.02)
    plan = compress(model, SMOL(target_bits=3.5, scale=scale, zero_precision=zero_precision), steps=4)
    plan.harden()
    bits = plan.metrics()["bits"]
    small = plan.finalize()
    save(small, tmp_path / "x.pare")
    assert report(small).bits == pytest.approx(bits, abs=1e-5)
    assert report(tmp_path / "x.pare").bits == pytest.approx(bits, abs=1e-5)


@pytest.mark.parametrize(
    "rival", [LSQ(bits=2), LSQ(bits=3, group="channel"), DoReFa(bits=2), DoReFa(bits=1), SLB(bits=2), LQNets(bits=3)]
)
def test_the_bits_of_rivals_are_theirs(rival: Rival) -> None:
    torch.manual_seed(0)
    plan = compress(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), rival, steps=4)
    assert report(plan.finalize()).bits == rival.bits


def test_a_grid_finer_than_any_method_uses_keeps_its_precisions() -> None:
    model = nn.Linear(8, 8, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([1.0, 3.0]).repeat(32).reshape(8, 8) * 2.0**-40)
    assert report(model).bits == 2.0


def test_weights_on_no_grid_count_their_dtype() -> None:
    torch.manual_seed(0)
    model = nn.Linear(10, 10)
    assert report(model).bits == 32.0
    with torch.no_grad():
        model.weight[:5] = 0.0
    assert report(model).bits == 16.0
    assert report(nn.Linear(100, 100).half()).bits == 16.0


@pytest.mark.parametrize("shape", [(1, 32), (32, 1), (1, 32, 1, 1)])
def test_a_single_row_of_any_values_is_on_no_grid(shape: tuple[int, ...]) -> None:
    model = nn.Sequential(nn.Linear(32, 1) if shape[0] == 1 else nn.Linear(1, 32))
    model[0].weight = nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    assert report(model).bits == 32.0
    with torch.no_grad():
        model[0].weight.copy_(0.1 * (model[0].weight * 2).round())
    assert report(model).bits < 8.0


def test_text_names_every_layer_and_the_total() -> None:
    found = report(small(), accuracy=0.75, baseline=small())
    text = str(found)
    for word in ("0.weight", "4.weight", "75.00%", f"{found.sizes.total:,}", "codes", "masks", "maps", "smaller than"):
        assert word in text
    assert max(len(line) for line in text.splitlines()) < 130


def test_a_folded_network_is_compared_with_the_whole_one(tmp_path: Path) -> None:
    whole = zoo.build("swrn-16-1-1")
    bytes_of_all = sum(tensor.nbytes for tensor in whole.state_dict().values())
    compress(whole, SoftSharing(**whole.sharing), steps=2)
    folded = fold(whole)
    save(folded, tmp_path / "folded.pare")
    for found in (report(folded), report(tmp_path / "folded.pare")):
        assert found.sizes.dense < found.dense == bytes_of_all
        assert found.as_dict()["baseline_bytes"] == bytes_of_all
        assert "for what is left" in str(found)
    assert report(zoo.build("swrn-16-1-1")).baseline is None


def test_a_baseline_may_be_named() -> None:
    found = report(nn.Linear(4, 4), baseline=nn.Linear(8, 8))
    assert found.dense == 4 * 72


def test_json_adds_up() -> None:
    data = json.loads(report(small(), example=torch.randn(1, 2, 4, 4), latency=False).to_json())
    total = data["bytes"].pop("total")
    assert sum(data["bytes"].values()) == pytest.approx(total)
    assert [layer["name"] for layer in data["layers"]] == ["0.weight", "4.weight"]
    assert data["layers"][1]["macs"] == 160
    assert data["accuracy"] is None


def test_html_is_written(tmp_path: Path) -> None:
    page = pt.report(small()).to_html(tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "4.weight" in page


def test_a_file_is_reported_by_its_path(tmp_path: Path) -> None:
    total = save(small(), tmp_path / "net.pare", norms=torch.bfloat16, summary={"accuracy": 0.5}).total
    found = report(tmp_path / "net.pare")
    assert found.sizes.total == total == (tmp_path / "net.pare").stat().st_size
    assert found.accuracy == 0.5
    assert found.name == "net.pare"
    assert found.bits == report(small()).bits
    with pytest.raises(ConfigError, match="names no zoo network"):
        report(tmp_path / "net.pare", example=torch.randn(1, 2, 4, 4))
    with pytest.raises(ConfigError, match="not int"):
        report(3)  # type: ignore[arg-type]


def test_counting_macs_does_not_change_the_module() -> None:
    model = small().train()
    model[1].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    count_macs(model, torch.randn(2, 2, 4, 4))
    assert [module.training for module in model] == [True, False, True, True, True]
    assert not any(module._forward_hooks for module in model.modules())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    with pytest.raises(ConfigError, match="does not run: index out of range"):
        report(nn.Embedding(5, 3), example=torch.tensor([[4, 5]]))
    with pytest.raises(ConfigError, match="does not run"):
        count_macs(model, torch.randn(2, 3, 4, 4))


def test_macs_of_grouped_transposed_and_reused_layers() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2)
            self.mix = nn.Conv1d(6, 6, 3, padding=1, groups=3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.up(x).flatten(2)
            return self.mix(self.mix(y))

    found = count_macs(Net(), torch.randn(1, 4, 3, 3))
    assert found == {"up": 4 * 9 * 3 * 4, "mix": 2 * 6 * 36 * 2 * 3}


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999, "999 B"), (48_123, "48.1 kB"), (2.5e9, "2.5 GB")])
def test_bytes_for_people(count: float, text: str) -> None:
    assert human(count) == text


def test_no_kind_of_bytes_is_negative() -> None:
    """Parts of a sum that is exact are not: 1e-15 below 0 would be shown as -0."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        codes = 2 * torch.randint(-2, 2, (20, 3), generator=generator) + 1
        kept = torch.rand(20, 3, generator=generator) > torch.rand(1, generator=generator)
        found = sizes({"w": codes * kept / 2}).tensors["w"]
        assert min(found.codes, found.masks, found.maps, found.rest) >= 0


def test_accuracy_is_measured_on_given_data(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Dropout(0.9)).train()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2))
    inputs = torch.eye(2).repeat(5, 1)
    right = torch.tensor([0, 1]).repeat(5)
    right[:3] = 1 - right[:3]
    assert report(model, data=[(inputs, right)]).accuracy == pytest.approx(0.7)
    assert report(model, data=[(inputs, right), (inputs[:0], right[:0])]).accuracy == pytest.approx(0.7)
    assert model.training
    assert model[1].training
    with pytest.raises(ConfigError, match="no batches"):
        report(model, data=[])
    with pytest.raises(ConfigError, match="inputs and their classes"):
        report(model, data=[(torch.zeros(2, 3), right[:2])])
    save(model, tmp_path / "net.pare")
    with pytest.raises(ConfigError, match="names no zoo network"):
        report(tmp_path / "net.pare", data=[(inputs, right)])


def test_a_file_is_measured_and_its_claims_are_not_used(tmp_path: Path) -> None:
    torch.manual_seed(0)
    save(zoo.build("digits-cnn", width=2), tmp_path / "net.pare", summary={"accuracy": 0.99})
    data = [(torch.zeros(4, 1, 8, 8), torch.arange(4))]
    assert report(tmp_path / "net.pare").accuracy == 0.99
    assert report(tmp_path / "net.pare", data=data).accuracy in (0.0, 0.25)


def test_times_are_compared_with_dense_under_the_same_runtime() -> None:
    found = report(small())
    assert found.speedups == {}
    times = {("dense", "torch"): 4.0, (found.name, "torch"): 2.0, ("dense", "onnxruntime"): 1.0}
    timed = tuple(Latency(*key, ms, ms, ms, 3, 1, 1, True) for key, ms in times.items())
    found = replace(found, latency=timed)
    assert found.speedups == {"torch": 2.0}
    assert "2.00 x under torch" in str(found)
    assert json.loads(found.to_json())["speedups"] == {"torch": 2.0}


def test_there_is_no_ratio_if_the_measured_ranges_overlap(tmp_path: Path) -> None:
    found = pt.report(small())
    timed = (
        Latency("dense", "torch", 4.0, 1.5, 5.0, 3, 1, 1, True),
        Latency(found.name, "torch", 2.0, 1.0, 2.5, 3, 1, 1, True),
        Latency("dense", "onnxruntime", 4.0, 3.0, 5.0, 3, 1, 1, True),
        Latency(found.name, "onnxruntime", 1.0, 0.5, 2.5, 3, 1, 1, True),
    )
    found = replace(found, latency=timed)
    assert found.speedups == {"onnxruntime": 4.0}
    assert "x under torch" not in str(found)
    assert "4.00 x under onnxruntime" in str(found)
    assert "no difference under torch: the ranges overlap" in str(found)
    page = found.to_html(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "4.00 ×" in page
    assert "2.00 ×" not in page
    assert "no difference" in page
    alone = replace(found, latency=timed[:2])
    assert alone.speedups == {}
    assert "no difference under torch" in str(alone)


def test_the_convention_of_macs_is_said_wherever_they_are() -> None:
    found = report(small(), example=torch.randn(1, 2, 4, 4), latency=False)
    assert "1 MAC is one multiplication and its addition" in str(found)
    assert "1 MAC is one multiplication and its addition" in json.loads(found.to_json())["macs_convention"]
    assert "1 MAC is" not in str(report(small()))


def test_quantized_activations_are_told(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = zoo.build("digits-cnn", width=2)
    example = torch.rand(2, 1, 8, 8)
    plan = compress(model, SMOLActivations(target_bits=4.0, group="layer"), steps=4, example=example)
    save(plan.finalize(), tmp_path / "net.pare")
    found = report(tmp_path / "net.pare")
    assert found.activations
    assert all(one.low == 0.0 < one.high and sum(one.groups.values()) == 1 for one in found.activations)
    mean = sum(one.bits for one in found.activations) / len(found.activations)
    assert 1.0 <= mean <= 8.0
    assert f"{len(found.activations)} are quantized: {mean:.2f} bits on average" in str(found)
    assert len(json.loads(found.to_json())["activations"]) == len(found.activations)
    assert report(small()).activations == ()


def test_folded_networks_report_their_loops_and_all_macs(tmp_path: Path) -> None:
    network = zoo.build("swrn-22-1-2", classes=4)
    example = torch.ones(1, 3, 8, 8)
    dense = report(zoo.build("wrn-22-1", classes=4), example=example, latency=False)
    compress(network, SoftSharing(**network.sharing), steps=9, seed=3)
    with torch.no_grad():
        for i, mix in enumerate([m for m in network.modules() if type(m).__name__ == "Mix"][:4]):
            mix.s.copy_((1.0 + i) * torch.eye(2)[i % 2])  # type: ignore[operator, union-attr]
    small_network = fold(network, threshold=0.999, only="stages.0.*")
    save(small_network, tmp_path / "folded.pare")
    found = report(tmp_path / "folded.pare", example=example, latency=False)
    assert found.shared[0].runs == (1, 2, 1, 2)
    assert "4 layers are stored as 2: layers 1-2 run twice" in str(found)
    assert found.macs == found.macs_kept == dense.macs
    assert json.loads(found.to_json())["shared"][0]["runs"] == [1, 2, 1, 2]
    mixed = [group for group in found.shared if not group.runs]
    assert mixed
    assert "every layer is a mixture of these" in str(found)


@pytest.mark.parametrize("path", sorted((Path(__file__).parent / "golden").glob("*.pare")), ids=lambda path: path.stem)
def test_the_bytes_of_a_file_are_its_own(path: Path) -> None:
    """Of any version and with any head, though the parts are counted as they would be coded today."""
    found = report(path)
    assert found.sizes.total == path.stat().st_size
    assert found.sizes.codes + found.sizes.masks + found.sizes.maps + found.sizes.rest == pytest.approx(
        found.sizes.total
    )


def test_a_file_without_a_name_in_the_zoo_keeps_its_scales(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([0.5, -0.5]).repeat(32).reshape(8, 8))
    model.paretorch_edits = [{"kind": "scale", "weight": "0.weight", "exponent": 0}]
    save(model, tmp_path / "x.pare", summary={"accuracy": 0.5})
    found = report(tmp_path / "x.pare")
    assert found.bits == 2.0
    assert found.sizes.total == (tmp_path / "x.pare").stat().st_size


def test_small_networks_are_larger_in_a_file_and_it_says_so() -> None:
    assert "larger than 80 B dense" in str(report(nn.Linear(4, 4)))
    assert "-0" not in str(report(nn.Linear(4, 4)))


def test_what_a_prompt_shows_is_one_line() -> None:
    found = report(small())
    assert (
        repr(found) == f"Report('Sequential': {found.sizes.total:,} bytes, {found.bits:.2f} bits per weight, 7.8% zero)"
    )
    assert repr(found.sizes).startswith(f"Sizes({found.sizes.total:,} bytes: codes ")
    assert repr(found.sizes).endswith("1,056 dense, 9 tensors)")


@pytest.mark.parametrize(("value", "bits"), [(0.1, 1), (1.0, 1), (0.5, 2), (0.0, 0)])
def test_weights_that_are_all_equal_take_a_bit_or_that_of_their_grid(value: float, bits: int) -> None:
    model = nn.Linear(20, 20)
    nn.init.constant_(model.weight, value)
    assert report(model).bits == bits
