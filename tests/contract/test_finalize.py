"""Promises 4 and 5: finalize gives the plain module back, export accepts it, the file brings it back exactly."""

import copy

import onnxruntime
import pytest
import torch
from torch import nn

from paretorch import Plan
from paretorch.deploy import load, save
from tests.contract.cases import COVER, EVERY, MODELS, STEPS, attach, build, combinations, only_in_contract
from tests.contract.loop import equal, optimizer_of, snapshot, train

ALL = only_in_contract(EVERY, COVER)
FEW = combinations(["both-mixed"], list(MODELS)) + combinations(["sparsity", "precision-zero"], ["conv2d"])


def hardened(method: str, model: str) -> tuple[nn.Module, Plan, torch.Tensor]:
    network = build(model)
    plan = attach(network, method, model)
    optimizer = optimizer_of(plan)
    x = MODELS[model].batch(6)
    train(network, plan, optimizer, x, STEPS)
    plan.harden(optimizer)
    train(network, plan, optimizer, x, 2)
    return network.eval(), plan, x


def anatomy(network: nn.Module) -> list[tuple[str, type, list[str], list[str], list[str], int]]:
    """What a module is made of, so that nothing of ours can hide."""
    return [
        (
            name,
            type(m),
            list(m._parameters),
            list(m._buffers),
            list(m._modules),
            len(m._forward_hooks) + len(m._forward_pre_hooks),
        )
        for name, m in network.named_modules()
    ]


@pytest.mark.parametrize(("method", "model"), ALL)
def test_a_plain_module_with_the_same_outputs(
    method: str, model: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    network, plan, x = hardened(method, model)
    expected, dense = network(x), plan.dense_state_dict()
    small = plan.finalize()
    assert torch.equal(small(x), expected)
    original = build(model)
    assert list(small.state_dict()) == list(original.state_dict())
    assert anatomy(small) == anatomy(original)
    assert not [key for m in small.modules() for key in m.__dict__ if key.startswith("_paretorch")]
    assert equal(snapshot(small), dense)
    copy.deepcopy(small)

    path = tmp_path_factory.mktemp("file") / "model.pare"
    save(small, path)
    again = load(path, into=build(model, seed=1)).eval()
    assert equal(snapshot(again), snapshot(small))
    assert torch.equal(again(x), expected)
    if model == "tied":
        assert small.head.weight is small.embed.weight
        assert again.head.weight is again.embed.weight


@pytest.mark.parametrize(("method", "model"), FEW)
def test_export_accepts_it(method: str, model: str) -> None:
    _network, plan, x = hardened(method, model)
    small = plan.finalize()
    program = torch.export.export(small, (x,))
    torch.testing.assert_close(program.module()(x), small(x))


@pytest.mark.parametrize(("method", "model"), [("both", "conv2d"), ("precision-channel", "attention")])
def test_onnx_accepts_it(method: str, model: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    _network, plan, x = hardened(method, model)
    small = plan.finalize()
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    torch.onnx.export(small, (x,), path, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(path)
    (output,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(output), small(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("method", "model"), ALL)
def test_preview_leaves_no_trace(method: str, model: str) -> None:
    network = build(model)
    plan = attach(network, method, model)
    optimizer = optimizer_of(plan)
    x = MODELS[model].batch(6)
    train(network, plan, optimizer, x, 4)
    before, soft = snapshot(network), network.eval()(x)
    with plan.hardened() as preview:
        hard = preview(x)
    assert equal(snapshot(network), before)
    assert torch.equal(network(x), soft)
    assert not plan.is_hard
    plan.harden()
    assert torch.equal(network(x), hard)
