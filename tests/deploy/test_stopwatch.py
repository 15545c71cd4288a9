"""What a latency budget is measured with: single layers as they are in the network, and networks beside the dense one."""

import copy
import math
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn

import paretorch as pt
from paretorch.deploy.measure import stopwatch as stopwatch_module
from paretorch.deploy.measure.layer_calls import LayerShape, onnxruntime_layer, torch_layer
from paretorch.deploy.measure.stopwatch import NetworkStopwatch, Onnxruntime, Torch, timed_runtime
from paretorch.edits import Edit
from paretorch.edits.keep_channels import KeepChannels
from paretorch.errors import ConfigError, MissingExtraError
from paretorch.support.inputs import ModelCall
from paretorch.support.text import parse_milliseconds

LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(12, 8), (2, 12)),
    "sequence": (nn.Linear(12, 8), (2, 5, 12)),
    "plain": (nn.Conv2d(6, 8, 3, stride=2, padding=1), (2, 6, 9, 9)),
    "same": (nn.Conv2d(6, 8, (3, 5), padding="same", dilation=2), (1, 6, 9, 9)),
    "depthwise": (nn.Conv2d(6, 12, 3, groups=6), (1, 6, 9, 9)),
    "grouped": (nn.Conv1d(6, 9, 3, groups=3, padding=1), (1, 6, 9)),
    "transposed": (nn.ConvTranspose2d(6, 8, 3, stride=2, output_padding=1), (1, 6, 4, 4)),
    "grouped transposed": (nn.ConvTranspose2d(6, 8, 2, stride=2, groups=2), (1, 6, 4, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_by_itself_is_the_one_of_the_network(name: str) -> None:
    module, inputs = LAYERS[name]
    shape = LayerShape.of(module, inputs)
    outputs = module(torch.zeros(inputs)).shape
    whole, one = torch_layer(shape)(), onnxruntime_layer(shape, 1)()
    assert isinstance(whole, Tensor)
    assert isinstance(one, list)
    assert whole.shape == outputs == one[0].shape
    torch.testing.assert_close(torch.from_numpy(one[0]), whole, atol=1e-4, rtol=1e-4)
    assert shape.cut(*(shape.weight[1], shape.weight[0]) if shape.transposed else shape.weight[:2]) == shape
    cut = shape.cut(4, shape.weight[1] if name == "depthwise" else 3)
    assert torch_layer(cut)().shape == onnxruntime_layer(cut, 1)()[0].shape  # type: ignore[index,attr-defined]


def test_cut_layers_have_whole_groups() -> None:
    depthwise, grouped, transposed = (
        LayerShape.of(*LAYERS[name]) for name in ("depthwise", "grouped", "grouped transposed")
    )
    assert (depthwise.cut(5, 1).weight, depthwise.cut(5, 1).inputs[1]) == ((6, 1, 3, 3), 3)
    assert (grouped.cut(4, 1).weight, grouped.cut(4, 1).inputs[1]) == ((6, 1, 3), 3)
    assert (transposed.cut(3, 3).weight, transposed.cut(3, 3).inputs[1]) == ((4, 3, 2, 2), 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.loop, self.head = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for _ in range(2):
            x = torch.relu(self.loop(x))
        return self.head(x.mean((2, 3)))


class Counting:
    """A timer that runs each call once, and says how many weights the last network had."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.times: dict[str, list[float]] = {"dense": [8.0, 10.0, 4.0], "small": [4.0, 5.0, 2.0], "layer": [2.0, 1.0]}

    def __call__(
        self, calls: Mapping[str, stopwatch_module.Call], rounds: int, seconds: float
    ) -> dict[str, list[float]]:
        self.calls.append(list(calls))
        assert all(call() is not None for call in calls.values())
        return {name: self.times[name] for name in calls}


HALF: Sequence[Edit] = (KeepChannels("ff", 16, ("stem", "loop"), ("loop", "head")),)


def test_networks_are_timed_beside_the_dense_one_and_layers_wherever_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch_module, "_LAYERS", {})
    model, timer = Net(), Counting()
    before = copy.deepcopy(model.state_dict())
    clock = NetworkStopwatch(model, torch.randn(1, 3, 8, 8), Onnxruntime(1), timer)
    assert clock.network(()) == 8.0
    assert clock.network(HALF) == clock.network(list(HALF)) == 8.0 * 0.5
    assert timer.calls == [["dense"], ["dense", "small"]]
    # It runs twice, and each of its four sizes is measured once.
    assert clock.layer("loop.weight", [8, 16], [8, 16]) == [[2.0, 2.0], [2.0, 2.0]]
    assert clock.layer("loop.weight", [8, 16], [8, 16]) == [[2.0, 2.0], [2.0, 2.0]]
    assert timer.calls[2:] == [["layer"]] * 4
    assert clock.layer("other.weight", [1], [1]) == [[0]]
    assert copy.deepcopy(clock) is clock
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_rounds_that_disagree_are_repeated() -> None:
    timer = Counting()
    timer.times["small"] = [4.0, 9.0, 1.0]
    clock = NetworkStopwatch(Net(), torch.randn(1, 3, 8, 8), Torch(), timer)
    assert clock.network(HALF) == 8.0 * 0.5
    assert timer.calls == [["dense", "small"]] * 4 + [["dense"]]


class Weighed(Onnxruntime):
    """onnxruntime, in which networks and layers take as long as they have weights."""

    def layer(self, shape: LayerShape) -> stopwatch_module.Call:
        run = super().layer(shape)
        return lambda: (run(), 1e-3 * math.prod(shape.weight))[1]

    def network(self, model: nn.Module, call: ModelCall) -> stopwatch_module.Call:
        run, size = super().network(model, call), sum(p.numel() for p in model.parameters())
        return lambda: (run(), 1e-3 * size)[1]


def test_compress_cuts_and_exports_until_the_time_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch_module, "Onnxruntime", Weighed)

    def timer(calls: Mapping[str, stopwatch_module.Call], rounds: int, seconds: float) -> dict[str, list[float]]:
        return {name: [float(call())] for name, call in calls.items()}  # type: ignore[arg-type]

    monkeypatch.setattr(NetworkStopwatch.__init__, "__defaults__", (timer,))
    monkeypatch.setattr(stopwatch_module, "_LAYERS", {})
    torch.manual_seed(0)
    model, x = Net(), torch.randn(1, 3, 8, 8)
    dense = sum(p.numel() for p in model.parameters())
    method = pt.ContinuousSparsification(group="channel", multiple=2, exclude="head", start="saliency")
    plan = pt.compress(model, method, steps=3, example=x, latency="1/2")
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.01)
    for _ in range(3):
        model(torch.randn(4, 3, 8, 8)).square().mean().backward()
        optimizer.step()
        plan.step()
    plan.harden()
    small = plan.finalize()
    assert sum(p.numel() for p in small.parameters()) <= dense / 2


def test_what_cannot_be_measured_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Net(), torch.randn(1, 3, 8, 8)
    method = pt.ContinuousSparsification(group="channel", exclude="head")
    with pytest.raises(ConfigError, match="measured under onnxruntime or torch, not 'openvino'"):
        pt.compress(model, method, steps=1, example=x, latency="1/2", runtime="openvino")
    with pytest.raises(ConfigError, match=r'latency=5: write it like "5 ms", "800 us" or "1/2"'):
        pt.compress(model, method, steps=1, example=x, latency=5)
    with pytest.raises(ConfigError, match="removes channels: give example="):
        pt.compress(model, method, steps=1, latency="5 ms")
    monkeypatch.setattr(stopwatch_module, "find_spec", lambda name: None)
    with pytest.raises(
        MissingExtraError, match=r"needs onnx: pip install 'paretorch\[export\]', or give runtime=\"torch\""
    ):
        pt.compress(model, method, steps=1, example=x, latency="5 ms")
    assert isinstance(timed_runtime("torch", 1), Torch)
    assert torch.is_tensor(Torch().network(model.eval(), ModelCall((x,)))())


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("5 ms", 5.0), ("800us", 0.8), ("1.5µs", 0.0015), (".5 S", 500.0), ("1/4", 2.0), ("1/1", 8.0)],
)
def test_times_as_text(text: str, milliseconds: float) -> None:
    assert parse_milliseconds(text, lambda: 8.0) == pytest.approx(milliseconds)


@pytest.mark.parametrize(
    "text", ["5", "ms", "0 ms", "-1 ms", "5 min", "2/1", "0/3", "1/0", "1e3 ms", "9" * 99 + " ms", None, 0.005]
)
def test_other_texts_are_no_times(text: object) -> None:
    with pytest.raises(ConfigError, match='"5 ms", "800 us" or "1/2"'):
        parse_milliseconds(text, lambda: 8.0)
