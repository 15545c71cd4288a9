"""`optimize` decides by the timer alone, here with given times, and never changes the model."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import paretorch as pt
from paretorch.deploy.fast import SparseLinear, SparsePointwise
from paretorch.deploy.measure.latency import is_faster, speedup, speedup_in_words


class Given:
    """Times by the name of the call: a number, or one for each of the four rounds."""

    def __init__(self, **times: float | Sequence[float]) -> None:
        self.times = times
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, calls: Mapping[str, object]) -> dict[str, list[float]]:
        self.asked.append(tuple(calls))
        for call in calls.values():
            call()
        given = {name: self.times[name] for name in calls}
        return {name: [t] * 4 if isinstance(t, float) else list(t) for name, t in given.items()}


def faster(**changes: float | Sequence[float]) -> Given:
    return Given(**{"dense": 2.0, "csr": 1.0, "before": 4.0, "after": 3.0, **changes})


def network(zeros: float = 0.95) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 60), nn.ReLU(), nn.Linear(60, 30), nn.BatchNorm1d(30), nn.Linear(30, 10))
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight.mul_(torch.rand_like(layer.weight) >= zeros)
    return model


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = nn.Conv2d(4, 6, 1, stride=2), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(input=self.mix(input=x).mean((2, 3)))
        return out


def test_layers_whose_inputs_are_given_by_name_are_replaced() -> None:
    torch.manual_seed(0)
    model, x = Named(), torch.randn(2, 4, 5, 5)
    with torch.no_grad():
        model.mix.weight[:4] = model.out.weight[1:] = 0
    fast, summary = pt.optimize(model, x, timer=faster())
    assert summary.changed
    assert (type(fast.mix), type(fast.out)) == (SparsePointwise, SparseLinear)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model.eval()(x))


def test_sparse_layers_are_replaced_and_the_rest_is_kept() -> None:
    model, x = network(), torch.randn(5, 40)
    state = copy.deepcopy(model.state_dict())
    timer = faster()
    fast, summary = pt.optimize(model, x, timer=timer)
    assert [type(layer) for layer in fast] == [SparseLinear, nn.ReLU, SparseLinear, nn.BatchNorm1d, nn.Linear]
    assert timer.asked == [("dense", "csr")] * 2 + [("before", "after")]
    assert summary.changed
    assert (summary.before_ms, summary.after_ms) == (4.0, 3.0)
    assert summary.difference is not None
    assert summary.difference < 1e-6
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model.eval()(x))
    assert all(torch.equal(a, state[key]) for key, a in model.state_dict().items())
    assert [type(layer) for layer in model] == [nn.Linear, nn.ReLU, nn.Linear, nn.BatchNorm1d, nn.Linear]


def test_the_copy_shares_no_memory_and_is_in_eval_mode() -> None:
    model = network().train()
    fast, _ = pt.optimize(model, torch.randn(5, 40), timer=faster())
    assert not fast.training
    assert model.training
    theirs = {t.data_ptr() for t in model.state_dict().values()}
    assert all(t.data_ptr() not in theirs for t in fast.state_dict().values() if t.numel())


def test_the_model_is_returned_if_the_copy_is_not_faster() -> None:
    model = network()
    fast, summary = pt.optimize(model, torch.randn(5, 40), timer=faster(after=3.95))
    assert fast is model
    assert not summary.changed
    assert "not faster as a whole" in summary.reason


def test_a_layer_that_is_not_faster_stays() -> None:
    model = network()
    fast, summary = pt.optimize(model, torch.randn(5, 40), timer=faster(csr=2.1))
    assert fast is model
    assert {choice.chosen for choice in summary.choices} == {"dense"}
    assert summary.choices[0].milliseconds == {"dense": 2.0, "csr": 2.1}
    assert "not faster" in summary.choices[0].reason
    assert summary.reason == "no layer was measured to be faster"


def test_one_fast_round_is_not_enough() -> None:
    assert not is_faster([2.0] * 4, [0.1, 1.99, 1.99, 1.99])
    assert not is_faster([2.0] * 4, [1.0, 1.0, 2.5, 2.5])
    assert is_faster([2.0] * 4, [1.0, 1.0, 1.0, 2.5])
    assert speedup([2.0, 4.0, 6.0], [1.0, 1.0, 1.0]) == 4.0


def test_overlapping_ranges_have_no_ratio() -> None:
    assert speedup_in_words([2.0, 4.0, 6.0], [1.0, 1.0, 1.9]) == "3.2 × faster"
    assert speedup_in_words([2.0, 4.0, 6.0, 6.0], [1.0, 2.0, 3.0, 6.1]) == "faster in 3 of 4 rounds"


def test_layers_are_measured_on_the_inputs_they_get() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = network()[0]

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) + self.layer(x[..., :1, :])

    seen: list[list[tuple[int, ...]]] = []

    def timer(calls: Mapping[str, object]) -> dict[str, list[float]]:
        if "csr" in calls:
            seen.append([tuple(out.shape) for out in calls["csr"]()])
        return {name: [4.0 - i] * 4 for i, name in enumerate(calls)}

    model = Twice()
    x = torch.randn(3, 6, 40)
    fast, _ = pt.optimize(model, (x,), timer=timer)
    assert seen == [[(3, 6, 60), (3, 1, 60)]]
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))


def test_a_layer_used_at_two_places_is_replaced_at_both() -> None:
    layer = nn.Linear(20, 20)
    with torch.no_grad():
        layer.weight.mul_(torch.rand(20, 20) < 0.1)
    fast, summary = pt.optimize(nn.Sequential(layer, nn.ReLU(), layer), torch.randn(2, 20), timer=faster())
    assert fast[0] is fast[2]
    assert isinstance(fast[0], SparseLinear)
    assert len(summary.choices) == 1


def test_pointwise_convolutions_and_outputs_in_a_mapping() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.point, self.wide = nn.Conv2d(8, 16, 1), nn.Conv2d(16, 4, 3)
            with torch.no_grad():
                self.point.weight.mul_(torch.rand_like(self.point.weight) < 0.1)

        def forward(self, x: Tensor) -> dict[str, object]:
            y = self.point(x)
            return {"first": y, "rest": [self.wide(y), None]}

    fast, summary = pt.optimize(Net(), torch.randn(2, 8, 5, 5), timer=faster())
    assert isinstance(fast.point, SparsePointwise)
    assert [choice.layer for choice in summary.choices] == ["point"]


@pytest.mark.parametrize("zeros", [0.0, 0.3])
def test_too_few_zeros_are_not_even_measured(zeros) -> None:
    timer = faster()
    fast, summary = pt.optimize(network(zeros), torch.randn(5, 40), timer=timer)
    assert timer.asked == []
    assert "too few" in summary.choices[0].reason
    assert fast is not None


def test_what_the_example_does_not_reach_is_left() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = network()[0], network()[2]

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    _, summary = pt.optimize(Idle(), torch.randn(2, 40), timer=faster())
    assert {c.layer: c.chosen for c in summary.choices} == {"used": "csr", "idle": "dense"}
    assert "does not reach" in summary.choices[1].reason


def test_half_precision_stays_dense_on_a_cpu() -> None:
    _, summary = pt.optimize(network().bfloat16(), torch.randn(5, 40).bfloat16(), timer=faster())
    assert "float32" in summary.choices[0].reason


def test_parametrised_layers_and_those_with_hooks_stay_and_are_named() -> None:
    class Double(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    model = network()
    parametrize.register_parametrization(model[0], "weight", Double(), unsafe=True)
    model[2].register_forward_hook(lambda layer, given, out: out + 1)
    fast, summary = pt.optimize(model, torch.randn(5, 40), timer=faster())
    assert fast is model
    assert {choice.layer: choice.chosen for choice in summary.choices} == {"0": "dense", "2": "dense", "4": "dense"}
    assert "parametrization" in summary.choices[0].reason
    assert "hooks" in summary.choices[1].reason


class Renamed(nn.Linear):
    """Computes what a Linear does."""


class RenamedPointwise(nn.Conv2d):
    """Computes what a Conv2d does."""


class Doubled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class Padded(nn.Conv2d):
    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(input + 1, weight, bias)


def test_subclasses_that_do_not_override_forward_are_treated_as_their_base() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(RenamedPointwise(8, 6, 1), nn.Flatten(), Renamed(24, 30)), torch.randn(5, 8, 2, 2)
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight.mul_(torch.rand_like(layer.weight) < 0.1)
    fast, summary = pt.optimize(model, x, timer=faster())
    assert {choice.layer: choice.chosen for choice in summary.choices} == {"0": "csr", "2": "csr"}
    assert (type(fast[0]), type(fast[2])) == (SparsePointwise, SparseLinear)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))


def test_subclasses_with_a_forward_pass_of_their_own_stay_and_are_named() -> None:
    model = nn.Sequential(Padded(4, 6, 1), Padded(6, 6, 3, padding=1), nn.Flatten(), Doubled(24, 10))
    with torch.no_grad():
        for layer in (model[0], model[1], model[3]):
            layer.weight.zero_()
    fast, summary = pt.optimize(model, torch.randn(3, 4, 2, 2), timer=faster())
    assert fast is model
    assert [(choice.layer, choice.chosen) for choice in summary.choices] == [
        ("0", "dense"), ("1", "dense"), ("3", "dense"),
    ]  # fmt: skip
    assert summary.choices[0].reason == "Padded has a forward pass of its own"
    assert summary.choices[2].reason == "Doubled has a forward pass of its own"
    assert "Doubled has a forward pass of its own" in str(summary)


def test_a_forward_pass_set_on_the_layer_itself_is_kept() -> None:
    model = network()
    model[0].forward = lambda input: torch.zeros(len(input), 60)
    fast, summary = pt.optimize(model, torch.randn(5, 40), timer=faster())
    assert [choice.chosen for choice in summary.choices] == ["dense", "csr", "dense"]
    assert type(fast[0]) is nn.Linear


def test_a_replacement_that_does_not_run_is_not_chosen() -> None:
    """Under autocast the input of a sparse product would be bf16."""
    with torch.autocast("cpu", torch.bfloat16):
        _, summary = pt.optimize(network(), torch.randn(5, 40), timer=faster())
    assert not summary.changed
    assert {choice.chosen for choice in summary.choices} == {"dense"}


def test_a_replacement_with_other_outputs_is_not_chosen(monkeypatch) -> None:
    right = SparseLinear.forward
    monkeypatch.setattr(SparseLinear, "forward", lambda self, x: right(self, x) * 1.001)
    timer = faster()
    fast, summary = pt.optimize(network(), torch.randn(5, 40), timer=timer)
    assert not summary.changed
    assert "csr differs by 1.0e-03, more than 1e-04" in summary.choices[0].reason
    assert timer.asked == []
    assert pt.optimize(network(), torch.randn(5, 40), timer=timer, tolerance=0.01).summary.changed
    assert isinstance(fast[0], nn.Linear)


def test_a_copy_with_other_outputs_is_not_chosen(monkeypatch) -> None:
    right, timer = SparseLinear.forward, faster()
    monkeypatch.setattr(SparseLinear, "forward", lambda self, x: right(self, x) + (len(timer.asked) == 2))
    model = network()
    fast, summary = pt.optimize(model, torch.randn(5, 40), timer=timer)
    assert fast is model
    assert "outputs differ by" in summary.reason
    assert [choice.chosen for choice in summary.choices] == ["csr", "csr", "dense"]


def test_torchs_fused_encoder_does_not_go_past_the_new_layers() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    with torch.no_grad():
        for layer in model.layers:
            layer.linear1.weight.mul_(torch.rand_like(layer.linear1.weight) < 0.1)
    x = torch.randn(2, 5, 16)
    fast, summary = pt.optimize(model, x, timer=faster())
    assert summary.changed
    assert isinstance(fast.layers[1].linear1, SparseLinear)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))


def test_a_model_that_reads_the_weight_itself_is_returned() -> None:
    class Nosy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = network()[0]

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) + self.layer.weight.T.contiguous().sum() * self.layer.in_features

    model = Nosy()
    fast, summary = pt.optimize(model, torch.randn(5, 40), timer=faster())
    assert fast is model
    assert "does not run" in summary.reason


def test_the_account_reads_as_a_table() -> None:
    text = str(pt.optimize(network(), torch.randn(5, 40), timer=faster()).summary)
    lines = text.splitlines()
    assert len(lines) == 4
    assert lines[0] == "0      csr    2.000 ms dense, 1.000 ms csr: 2.0 × faster"
    assert lines[-1].startswith("model  faster: 4.000 ms before, 3.000 ms after: 1.3 × faster, outputs")


@pytest.mark.parametrize(
    ("options", "why"),
    [({"rounds": 0}, "rounds"), ({"seconds": 0.0}, "seconds"), ({"tolerance": 0.0}, "tolerance")],
)
def test_wrong_options(options, why) -> None:
    with pytest.raises(pt.PareError, match=why):
        pt.optimize(network(), torch.randn(5, 40), **options)


def test_an_example_that_does_not_run_is_named() -> None:
    with pytest.raises(pt.PareError, match=r"\(1, 2\) does not run: index out of range"):
        pt.optimize(nn.Embedding(5, 3), torch.tensor([[4, 5]]))
    with pytest.raises(pt.PareError, match=r"\(5, 41\) does not run"):
        pt.optimize(network(), torch.randn(5, 41), timer=faster())


def test_the_real_clock() -> None:
    """Whatever it says, outputs agree and the summary is whole."""
    model, x = network(), torch.randn(5, 40)
    fast, summary = pt.optimize(model, x, rounds=2, seconds=0.001)
    assert len(summary.choices) == 3
    assert (fast is model) == (not summary.changed)
    with torch.no_grad():
        torch.testing.assert_close(fast.eval()(x), model.eval()(x))


def test_a_saved_state_loads_into_a_model_made_alike() -> None:
    fast, _ = pt.optimize(network(), torch.randn(5, 40), timer=faster())
    other, _ = pt.optimize(network(0.9), torch.randn(5, 40), timer=faster())
    other.load_state_dict(fast.state_dict())
    x = torch.randn(3, 40)
    with torch.no_grad():
        assert torch.equal(other(x), fast(x))
