"""`runtime=`: networks are trained on the values that a runtime stores."""

import re
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import paretorch as pt
from paretorch.core.method import Method
from paretorch.deploy.runtimes import RUNTIMES
from paretorch.deploy.runtimes.read import in_groups, read_stored
from paretorch.errors import ConfigError, LeftOutWarning
from paretorch.methods.precision.rivals import LSQ
from tests.deploy.runtimes.nets import Pictures, Words, batch_for, trained


def names_of(small: nn.Module, runtime: str) -> dict[str, str | None]:
    return {name: one.form and one.form.name for name, one in read_stored(small, RUNTIMES[runtime]).items()}


@pytest.mark.filterwarnings("ignore::paretorch.errors.LeftOutWarning")
@pytest.mark.parametrize("runtime", sorted(RUNTIMES))
@pytest.mark.parametrize("network", [Words, Pictures])
@pytest.mark.parametrize("method", [None, LSQ], ids=["smol", "lsq"])
def test_values_are_those_of_codes_and_steps(
    runtime: str, network: type[nn.Module], method: type[LSQ] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paretorch.deploy.runtimes.registry.find_spec", lambda name: name)  # only files need packages
    if runtime == "torchao-int4" and network is Pictures:
        pytest.skip("no layer has codes")
    methods: list[Method] = [] if method is None else [method(bits=RUNTIMES[runtime].bits, lr=0.1)]
    torch.manual_seed(0)
    small = trained(network(), runtime, *methods)
    for name, one in read_stored(small, RUNTIMES[runtime]).items():
        if one.form is None:
            assert not RUNTIMES[runtime].formats(one.site), name
            assert not RUNTIMES[runtime].has_halves
            continue
        weight = small.get_parameter(name).detach()
        if one.form.is_half:
            assert torch.equal(weight.half().float(), weight)
            continue
        assert one.codes.min() >= one.form.low
        assert one.codes.max() <= one.form.high
        steps = one.steps.astype(np.float16 if one.form.scale == torch.float16 else np.float32).astype(np.float32)
        product = (one.codes.astype(np.float32) * steps[..., None]).astype(np.float32)
        assert np.array_equal(product, in_groups(weight.numpy(), one.form, one.site))


def test_training_and_rounding_change_weights_but_not_outputs() -> None:
    torch.manual_seed(0)
    model = Words()
    before = model.up.weight.detach().clone()
    plan = pt.compress(model, pt.SMOL(), steps=4, runtime="gguf:Q4_0")
    optimizer = torch.optim.Adam(plan.param_groups(), lr=1e-2)
    first = [value.clone() for key, value in model.state_dict().items() if key.endswith(".s")]
    for _ in range(4):
        model(batch_for(model)).square().mean().backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    last = [value for key, value in model.state_dict().items() if key.endswith(".s")]
    assert all(not torch.equal(a, b) for a, b in zip(first, last, strict=True)), "steps are learned"
    expected = model(batch_for(model)).detach()
    plan.harden(optimizer)
    assert plan.metrics()["bits"] == 4.0
    small = plan.finalize()
    assert torch.equal(small(batch_for(model)), expected)
    assert not torch.equal(small.get_parameter("up.weight"), before)


@pytest.mark.parametrize(("name", "bits"), [("int4x32", 4), ("int8", 8), ("Q4_0", 4), ("TQ2_0", 2)])
def test_rounding_alone_is_no_worse_than_by_the_largest_magnitude(name: str, bits: int) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(512, 24)
    weight = layer.weight.detach().clone()
    small = pt.compress(layer, pt.SMOL(format=name), steps=1).finalize()
    block = {"int4x32": 32, "int8": 512, "Q4_0": 32, "TQ2_0": 256}[name]
    rows = weight.reshape(-1, block)
    if name == "Q4_0":  # as llama.cpp rounds: the largest magnitude of either sign has the code −8
        top = rows.gather(1, rows.abs().argmax(1, keepdim=True))
        steps, low, high = (top / -8).half().float(), -8.0, 7.0
    else:
        high = {4: 7.0, 8: 127.0, 2: 1.0}[bits]
        steps, low = rows.abs().amax(1, keepdim=True) / high, -high
    plain = (rows / steps).round().clamp(low, high) * steps
    assert (small.weight.detach().reshape(-1, block) - rows).square().sum() <= (plain - rows).square().sum() * 1.0001


def test_gradients_are_those_of_a_clipped_learned_step() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(32, 4, bias=False)
    plan = pt.compress(layer, pt.SMOL(format="int4x16"), steps=5)
    (state,) = [module for module in layer.modules() if hasattr(module, "base")]
    theta = layer.state_dict()["weight"]
    step = state.base.repeat_interleave(16, 1)  # type: ignore[operator]
    scaled = theta / step
    inside = (scaled > -8.5) & (scaled < 7.5)
    assert torch.equal(layer.weight.detach(), scaled.round().clamp(-8, 7) * step)
    x = torch.randn(7, 32)
    gradient = torch.autograd.grad(layer(x).square().sum(), layer.weight)[0]
    layer(x).square().sum().backward()
    seen: list[torch.Tensor] = []
    optimizer = torch.optim.SGD(plan.param_groups(), lr=1.0)
    plan_step = optimizer.step
    plan_step()
    seen.append(layer.state_dict()["weight"] - theta)
    assert torch.allclose(seen[0], -gradient * inside, atol=1e-5)


def test_bits_between_two_widths_are_met_by_mixing() -> None:
    torch.manual_seed(0)
    model = Words()
    with torch.no_grad():
        model.up.weight[:, ::64] *= 30  # few bits lose much here
    small = trained(model, "onnxruntime-int4", pt.SMOL(target_bits=6.5), steps=1)
    found = names_of(small, "onnxruntime-int4")
    assert found["up.weight"] == "int8x128"
    assert "int4x128" in found.values()
    bits = sum(int(str(form)[3]) * small.get_parameter(name).numel() for name, form in found.items())
    assert bits <= 6.5 * sum(small.get_parameter(name).numel() for name in found)


def test_masks_stay_zero() -> None:
    torch.manual_seed(0)
    methods = (pt.ContinuousSparsification(target=0.6), pt.SMOL())
    small = trained(Words(), "onnxruntime-int4", *methods)
    weights = [p for p in small.parameters() if p.dim() > 1]
    zeros = sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)
    assert zeros >= 0.6
    assert set(names_of(small, "onnxruntime-int4").values()) == {"int4x128"}


def test_a_layer_may_have_a_format_of_its_own() -> None:
    method = pt.SMOL(overrides={"head*": {"format": "Q8_0"}, "up*": {"format": "fp16"}})
    assert names_of(trained(Words(), "gguf:Q4_0", method), "gguf:Q4_0") == {
        "embedding.weight": "Q4_0",
        "up.weight": "fp16",
        "down.weight": "Q4_0",
        "head.weight": "Q8_0",
    }


def test_layers_without_codes_are_named_and_counted() -> None:
    with pytest.warns(LeftOutWarning, match=re.escape("no codes for 3 of 4 layers")) as caught:
        trained(Pictures(), "gguf:Q4_0")
    assert "stem.weight, depth.weight, point.weight" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(Pictures(), "openvino")


@pytest.mark.parametrize(
    ("methods", "options", "words"),
    [
        ((pt.SMOL(),), {"runtime": "tflite"}, "runtime='tflite' is not known: use one of onnxruntime-int8, "),
        ((pt.ContinuousSparsification(target=0.5),), {"runtime": "openvino"}, "give SMOL() or LSQ(bits=...)"),
        (
            (pt.SMOL(target_bits=3.0),),
            {"runtime": "gguf:Q8_0"},
            "target_bits=3.0: runtime='gguf:Q8_0' stores codes of 8",
        ),
        ((LSQ(bits=4),), {"runtime": "onnxruntime-int8"}, "bits=4: runtime='onnxruntime-int8' stores codes of 8 bits"),
        ((pt.SMOL(),), {"runtime": "openvino", "budget": 9999}, "leave out budget=, or give target_bits"),
        ((pt.SMOL(format="int5"),), {}, "format='int5' is not known: use one of int8, int4"),
        ((pt.SMOL(format="Q4_0", target_bits=4.0),), {}, "says how many bits a weight takes: leave out target_bits"),
        ((pt.SMOL(format="TQ2_0", include="head*"),), {}, "cannot hold head.weight of shape (10, 64)"),
        (
            (pt.SMOL(overrides={"head*": {"format": "Q4_0"}}),),
            {"runtime": "openvino"},
            "format='Q4_0' of head.weight: runtime='openvino' stores it as int4x64",
        ),
    ],
)
def test_what_cannot_work_is_refused(methods: tuple[Method, ...], options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        pt.compress(Pictures(), *methods, steps=3, **options)  # type: ignore[arg-type]


def test_blocks_and_removed_channels_do_not_go_together() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    methods = (pt.ContinuousSparsification(target=0.5, group="channel"), pt.SMOL())
    with pytest.raises(ConfigError, match="remove channels first"):
        pt.compress(model, *methods, steps=3, runtime="onnxruntime-int4", example=torch.randn(2, 64))


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(ConfigError, match=re.escape("needs float32: compress model.float()")):
        pt.compress(Words().bfloat16(), pt.SMOL(), steps=3, runtime="gguf:Q4_0")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paretorch.deploy.runtimes.registry.find_spec", lambda name: None)
    with pytest.raises(pt.PareError, match=re.escape("needs gguf: pip install 'paretorch[gguf]'")):
        pt.compress(Words(), pt.SMOL(), steps=3, runtime="gguf:Q4_0")


def test_a_state_goes_on() -> None:
    torch.manual_seed(0)
    model = Words()
    plan = pt.compress(model, pt.SMOL(), steps=4, runtime="onnxruntime-int4")
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.1)
    model(batch_for(model)).square().mean().backward()
    optimizer.step()
    plan.step()
    other = Words()
    again = pt.compress(other, pt.SMOL(), steps=4, runtime="onnxruntime-int4")
    other.load_state_dict(model.state_dict())
    assert torch.equal(plan.finalize()(batch_for(model)), again.finalize()(batch_for(model)))


@pytest.mark.filterwarnings("ignore::paretorch.errors.LeftOutWarning")
def test_a_report_has_the_bytes_of_each_runtime_that_holds_the_values() -> None:
    torch.manual_seed(0)
    report = pt.report(trained(Words(), "gguf:Q4_0"))
    weights = 40 * 256 * 2 + 2 * 256 * 512
    assert report.runtimes["gguf:Q4_0"] == weights * 18 // 32 + 4 * 512
    assert "gguf:Q4_0" in str(report)
    assert "onnxruntime-int8" not in report.runtimes, "steps per block are none per channel"
    assert report.as_dict()["runtimes"] == dict(report.runtimes)
    assert pt.report(Words()).runtimes == {}
