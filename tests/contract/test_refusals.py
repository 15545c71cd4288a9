"""Promise 6: wrong arguments say what is wrong and what would be right, before anything is touched."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paretorch import SMOL, ContinuousSparsification, Plan, SoftSharing, compress, fold
from paretorch.errors import ConfigError, DivergenceError, PareError
from tests.contract.cases import METHODS, MODELS, STEPS, build
from tests.contract.loop import equal, optimizer_of, snapshot, train

CS = ContinuousSparsification


def wrong_shape(_: str, weight: Tensor) -> Tensor:
    return torch.zeros(len(weight), dtype=torch.int64)


def real_labels(_: str, weight: Tensor) -> Tensor:
    return torch.zeros(weight.shape)


def no_labels(_: str, weight: Tensor) -> Any:
    return None


def with_value(value: float) -> nn.Module:
    model = build("linear")
    model[0].bias.data[1] = value
    return model


def already_compressed() -> nn.Module:
    model = build("linear")
    compress(model, CS(target=0.5), steps=STEPS)
    return model


def folded() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    compress(model, SoftSharing(templates=1), steps=STEPS)
    return fold(model, layers=1)


def with_a_norm() -> nn.Module:
    model = build("linear")
    nn.utils.parametrizations.weight_norm(model[2])
    return model


def far_weights() -> nn.Module:
    model = build("linear")
    model[2].weight.data[0, 0] = 3.0
    return model


# name: (methods, other arguments, fragments of the message)
ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any], list[str]]] = {
    "no method": ((), {}, ["at least one method", "ContinuousSparsification(target=0.9)"]),
    "a class": ((CS,), {}, ["is no method", "ContinuousSparsification(target=0.9)"]),
    "a string": (("sparsity",), {}, ["'sparsity' is no method"]),
    "two of one kind": ((CS(), CS(target=0.5)), {}, ["two methods of one kind", "overrides"]),
    "steps 0": ((CS(),), {"steps": 0}, ["steps=0", "epochs * len(loader)"]),
    "steps -1": ((CS(),), {"steps": -1}, ["steps=-1", "epochs * len(loader)"]),
    "steps 1.5": ((CS(),), {"steps": 1.5}, ["steps=1.5", "number of optimizer steps"]),
    "steps True": ((CS(),), {"steps": True}, ["steps=True", "number of optimizer steps"]),
    "budget 0": ((CS(),), {"budget": 0}, ["budget=0", "bytes of the file"]),
    "budget below the rest": ((CS(),), {"budget": 30}, ["budget=30", "allow at least"]),
    "unknown group": ((CS(group="row"),), {}, ["group='row'", "weight, channel, layer, network"]),
    "group of another type": ((SMOL(group=4),), {}, ["group=4", "a block shape such as (4, 4)"]),
    "block too large": ((CS(group=(11, 1)),), {}, ["(11, 1)", "must fit into 0.weight of shape (10, 6)"]),
    "block of too many dimensions": ((CS(group=(1, 1, 1)),), {}, ["must fit into 0.weight", "exclude"]),
    "block of zero": ((CS(group=(2, 0)),), {}, ["positive whole numbers, such as (4, 4)"]),
    "block of fractions": ((CS(group=(2, 1.5)),), {}, ["positive whole numbers, such as (4, 4)"]),
    "empty block": ((CS(group=()),), {}, ["positive whole numbers, such as (4, 4)"]),
    "labels of another shape": ((CS(group=wrong_shape),), {}, ["integer tensor of shape (10, 6) for 0.weight"]),
    "labels that are real": ((CS(group=real_labels),), {}, ["integer tensor of shape (10, 6) for 0.weight"]),
    "labels that are no tensor": ((SMOL(group=no_labels),), {}, ["integer tensor of shape (10, 6) for 0.weight"]),
    "target -0.1": ((CS(target=-0.1),), {}, ["target=-0.1", "from 0 to just below 1"]),
    "target 1": ((CS(target=1.0),), {}, ["target=1.0", "such as 0.95"]),
    "target 2": ((CS(target=2),), {}, ["target=2", "such as 0.95"]),
    "target NaN": ((CS(target=math.nan),), {}, ["target=nan", "such as 0.95"]),
    "unknown gate": ((CS(gate="tanh"),), {}, ["gate='tanh'", "sigmoid, erf, arctan, algebraic"]),
    "final_temperature 0.5": ((CS(final_temperature=0.5),), {}, ["final_temperature=0.5", "1 or more"]),
    "anneal 0": ((CS(anneal=0.0),), {}, ["anneal=0.0", "above 0, up to 1"]),
    "anneal 1.5": ((CS(anneal=1.5),), {}, ["anneal=1.5", "above 0, up to 1"]),
    "anneal 0 of precision": ((SMOL(anneal=0.0),), {}, ["anneal=0.0", "above 0, up to 1"]),
    "penalty negative": ((CS(penalty=-1e-3),), {}, ["penalty=-0.001", "0 or more"]),
    "penalty NaN": ((CS(penalty=math.nan),), {}, ["penalty=nan", "0 or more"]),
    "penalty of bits negative": ((SMOL(penalty=-1.0),), {}, ["penalty=-1.0", "0 or more"]),
    "target_bits 0": ((SMOL(target_bits=0),), {}, ["target_bits=0", "above 0, up to 16"]),
    "target_bits 17": ((SMOL(target_bits=17),), {}, ["target_bits=17", "above 0, up to 16"]),
    "init_bits 1": ((SMOL(init_bits=1),), {}, ["init_bits=1", "more than 1 and at most 16"]),
    "init_bits 17": ((SMOL(init_bits=17),), {}, ["init_bits=17", "more than 1 and at most 16"]),
    "target above the start": ((SMOL(target_bits=6, init_bits=4),), {}, ["target_bits=6 is above init_bits=4"]),
    "unknown rounding": ((SMOL(rounding="up"),), {}, ["rounding='up'", '"floor" or "round"']),
    "allowed_bits 0": ((SMOL(allowed_bits=(0, 4)),), {}, ["allowed_bits=(0, 4)", "such as (1, 2, 4, 8)"]),
    "allowed_bits 2.5": ((SMOL(allowed_bits=(2.5,)),), {}, ["allowed_bits=(2.5,)", "such as (1, 2, 4, 8)"]),
    "unknown scale": ((SMOL(scale="max"),), {}, ["scale='max'", '"fit", "auto", or an exponent']),
    "scale 100": ((SMOL(scale=100),), {}, ["scale=100", "from -60 to 60"]),
    "scale too small": ((SMOL(scale=-9),), {}, ["0.weight has weights up to", 'scale="auto"']),
    "no such layer": ((CS(include="conv*"),), {}, ["finds no layer", "include='conv*'", "0.weight, 2.weight"]),
    "all layers excluded": ((SMOL(exclude=nn.Linear),), {}, ["SMOL finds no layer", "0.weight, 2.weight"]),
    "one method finds nothing": ((CS(), SMOL(include="conv*")), {}, ["SMOL finds no layer"]),
    "selector of another type": ((CS(include=3),), {}, ["3 selects no layer", "a name pattern"]),
    "unknown option in overrides": ((CS(overrides={"0": {"grup": 1}}),), {}, ["overrides['0']", "grup is no option"]),
    "a gate that is no name": ((CS(gate=["erf"]),), {}, ["gate=['erf'] is not known", "sigmoid, erf"]),  # type: ignore[arg-type]
    "a gate that is closed at the start": ((CS(gate="erf", init=-4.0),), {}, ["init=-4.0", "nearer to 0"]),
    "wrong value in overrides": ((CS(overrides={"2": {"gate": "tanh"}}),), {}, ["gate='tanh'"]),
    "overrides of what is the whole network's": ((CS(overrides={"0": {"target": 0.9}}),), {}, ["target", "gate, group, init"]),
    "overrides of no layer": ((CS(overrides={"conv9": {"init": 0.1}}),), {}, ["overrides['conv9']", "matches no layer"]),
    "overrides that are no mapping": ((CS(overrides=["0"]),), {}, ["overrides=['0']", "by pattern"]),
    "init out of reach": ((CS(init=-200),), {}, ["init=-200", "-10 to 10"]),
    "target a string": ((CS(target="0.9"),), {}, ["target='0.9'", "such as 0.95"]),
    "target_bits a string": ((SMOL(target_bits="2"),), {}, ["target_bits='2'"]),
    "negative lr": ((CS(lr=-1.0),), {}, ["lr=-1.0", "positive"]),
    "lr that is infinite": ((SMOL(lr=math.inf),), {}, ["lr=inf", "positive"]),
    "optimizer that is none": ((CS(optimizer=3),), {}, ["optimizer", "function"]),
    "seed a fraction": ((CS(),), {"seed": 0.5}, ["seed=0.5", "whole number"]),
    "budget no size": ((CS(),), {"budget": "48 apples"}, ["'48 apples' is not a size", "48 KB"]),
    "budget a list": ((CS(),), {"budget": [48]}, ["[48]", "48"]),
    "allowed_bits a number": ((SMOL(allowed_bits=4),), {}, ["allowed_bits=4", "tuple"]),
    "bits below one with nothing to drop": ((SMOL(target_bits=0.5),), {}, ["target_bits=0.5", "zero_precision=True"]),
    "bits below the allowed": ((SMOL(target_bits=2, allowed_bits=(4, 8)),), {}, ["below the 4", "zero_precision"]),
    "second method wrong": ((CS(target=0.5), SMOL(target_bits=-1)), {}, ["target_bits=-1"]),
    "wrong for the second layer only": ((CS(group=(4, 1)),), {}, ["must fit into 2.weight of shape (3, 10)"]),
}  # fmt: skip

# name: (model, fragments of the message)
WRONG_MODELS: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "no weights": (lambda: nn.Sequential(nn.ReLU()), ["finds no layer", "no weight of two dimensions"]),
    "norms only": (lambda: nn.Sequential(nn.BatchNorm1d(4)), ["finds no layer", "no weight of two dimensions"]),
    "NaN": (lambda: with_value(math.nan), ["0.bias has values that are not finite", "before compress"]),
    "infinite": (lambda: with_value(math.inf), ["0.bias has values that are not finite", "before compress"]),
    "meta device": (lambda: nn.Linear(3, 3, device="meta"), ["meta device", "before compress"]),
    "a weight norm": (
        with_a_norm,
        ["2 has a parametrization of its own", "remove_parametrizations"],
    ),
    "in DataParallel": (lambda: nn.DataParallel(nn.Linear(3, 3)), ["in a DataParallel already", "then wrap it"]),
    "folded": (folded, ["the network is folded", "SoftSharing and the other methods to one compress"]),
    "compressed already": (already_compressed, ["0.weight has a plan already", "all methods to one compress"]),
}


def anatomy(model: nn.Module) -> list[tuple[str, type, list[str], int]]:
    """Modules, their classes, all their tensors by name, and the number of hooks."""
    return [
        (
            name,
            type(module),
            [*module._parameters, *module._buffers],
            len(module._forward_pre_hooks) + len(module._forward_hooks) + len(module._load_state_dict_pre_hooks),
        )
        for name, module in model.named_modules()
    ]


def refused(model: nn.Module, methods: tuple[Any, ...], arguments: dict[str, Any], fragments: list[str]) -> None:
    """compress refuses with one line that holds the fragments, and leaves the model as it was."""
    before, structure = dict(model.state_dict(keep_vars=True)), anatomy(model)
    values = {name: t.detach().clone() for name, t in before.items() if not isinstance(t, nn.UninitializedParameter)}
    with pytest.raises(ConfigError) as caught:
        compress(model, *methods, **{"steps": STEPS, **arguments})
    message = str(caught.value)
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message
    assert anatomy(model) == structure
    after = dict(model.state_dict(keep_vars=True))
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)
    for name, value in values.items():
        assert value.is_meta or torch.equal(after[name].nan_to_num(), value.nan_to_num())


@pytest.mark.parametrize("case", list(ARGUMENTS))
def test_wrong_arguments(case: str) -> None:
    model = build("linear")
    refused(model, *ARGUMENTS[case])
    with pytest.raises(ConfigError, match="no plan"):
        Plan.of(model)
    compress(model, *METHODS["both"](), steps=STEPS)  # and the same model can still be compressed


@pytest.mark.parametrize("case", list(WRONG_MODELS))
def test_wrong_models(case: str) -> None:
    make, fragments = WRONG_MODELS[case]
    refused(make(), (CS(target=0.5),), {}, fragments)


def test_weights_that_no_given_grid_holds() -> None:
    refused(far_weights(), (SMOL(scale=0),), {}, ["2.weight has weights up to 3", "±2", 'scale="auto"'])


@pytest.mark.parametrize("method", list(METHODS))
def test_a_plain_state_is_refused_after_compress(method: str) -> None:
    model = build("linear")
    compress(model, *METHODS[method](), steps=STEPS)
    before = snapshot(model)
    with pytest.raises(ConfigError, match="load plain weights before compress"):
        model.load_state_dict(build("linear", seed=1).state_dict())
    assert equal(snapshot(model), before)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("method", list(METHODS))
def test_a_loss_that_is_not_finite_stops_the_plan(method: str, value: float) -> None:
    model = build("linear")
    plan = compress(model, *METHODS[method](), steps=STEPS)
    x = MODELS["linear"].batch(6)
    train(model, plan, optimizer_of(plan), x, 3)
    before = snapshot(model)
    (model(x).sum() * value).backward()
    with pytest.raises(DivergenceError, match=r"step 3: the gradient that reaches 0\.weight is not finite"):
        plan.step()
    assert equal(snapshot(model), before)


def test_errors_are_of_the_usual_kinds_too() -> None:
    assert issubclass(ConfigError, ValueError)
    assert issubclass(DivergenceError, ArithmeticError)
    assert issubclass(ConfigError, PareError)
