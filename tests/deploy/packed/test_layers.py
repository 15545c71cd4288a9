"""Packed layers are modules: copies, states, compilers, dtypes, and what is refused."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

from paretorch.deploy.packed import FewBitEmbedding, FewBitLinear
from paretorch.deploy.packed.few_bits import pack
from paretorch.errors import ConfigError
from tests.deploy.packed.weights import random_integers


def layer(kind: str = "mixed", seed: int = 0) -> FewBitLinear:
    weight = pack(random_integers(kind, 40, 64, seed=seed))
    assert weight is not None
    return FewBitLinear(weight, torch.randn(40))


def test_copies_and_states() -> None:
    own, x = layer(), torch.randn(3, 64)
    wanted = own(x)
    assert torch.equal(copy.deepcopy(own)(x), wanted)
    buffer = io.BytesIO()
    torch.save(own, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)(x), wanted)
    other = layer("2 bits", seed=1)
    assert not torch.equal(other(x), wanted)
    other.load_state_dict(own.state_dict())
    assert torch.equal(other(x), wanted)


def test_inputs_of_any_shape_and_stride() -> None:
    own = layer()
    for x in (torch.randn(64), torch.randn(2, 3, 64), torch.randn(64, 5).T, torch.randn(0, 64)):
        wanted = nn.functional.linear(x, own.weight, own.bias)
        torch.testing.assert_close(own(x), wanted, rtol=1e-4, atol=1e-4)
    with pytest.raises(RuntimeError, match="64"):
        own(torch.randn(2, 63))


def test_inputs_may_need_a_gradient() -> None:
    own, x = layer(), torch.randn(2, 64, requires_grad=True)
    own(x).sum().backward()
    torch.testing.assert_close(x.grad, own.weight.sum(0).expand(2, 64))
    assert not any(parameter.requires_grad for parameter in own.parameters())


def test_torch_compile_does_not_trace_it() -> None:
    model, x = nn.Sequential(layer(), nn.ReLU(), nn.Linear(40, 8)), torch.randn(3, 64)
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))


def test_an_embedding_returns_rows() -> None:
    weight = pack(random_integers("mixed", 40, 64))
    assert weight is not None
    own, ids = FewBitEmbedding(weight), torch.tensor([[3, 39], [0, 3]])
    assert torch.equal(own(ids), own.weight[ids])


def test_training_is_refused() -> None:
    model = nn.Sequential(layer())
    assert not model.eval()[0].training
    with pytest.raises(ConfigError, match="Packed weights cannot be trained: load the file without packed=True"):
        model.train()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(
        ConfigError, match=r"Packed weights stay float32, not torch.*: load the file without packed=True"
    ):
        nn.Sequential(layer()).to(dtype)


def test_moves_that_keep_the_dtype_work() -> None:
    own, x = layer(), torch.randn(3, 64)
    assert torch.equal(own.float().to("cpu")(x), own(x))


def test_its_text_says_how_many_outputs_have_which_bits() -> None:
    assert "64, 40, bias=True, outputs: 40 of 4 bits" in repr(layer("4 bits odd"))
