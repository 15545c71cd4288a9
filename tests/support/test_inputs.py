"""Examples and batches as calls, and outputs as tensors."""

from collections import UserDict
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import BatchEncoding
from transformers.modeling_outputs import CausalLMOutputWithPast

from paretorch.errors import ConfigError
from paretorch.support.inputs import (
    ModelCall,
    TensorFunction,
    batch_call,
    main_output,
    named_tensors,
    read_example,
    tensors_in,
)
from tests.support.signatures import SIGNATURES, ZERO, Found, Named, Nested, Pair, Plain, Two, X


@pytest.mark.parametrize(("kind", "example"), SIGNATURES)
def test_every_signature_gives_what_the_tensor_gives(kind: type[Plain], example: Any) -> None:
    call, model = read_example(example), kind().eval()
    assert call.batch == 4
    torch.testing.assert_close(tensors_in(call(model))[0], Plain().eval()(X))
    torch.testing.assert_close(tensors_in(call.first()(model))[0], Plain().eval()(X[:1]))
    flat = TensorFunction(model, call)(*call.tensors)
    torch.testing.assert_close(flat[0], Plain().eval()(X))


@pytest.mark.parametrize("example", [None, "x", 3, [], {}, {"x": 1}, (1.0, None), X[:0], torch.tensor(1.0), {1: X}])
def test_what_is_no_example_is_told_in_a_sentence(example: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"^example: give a batch of inputs as the model takes it: a tensor, a tuple"
    ) as told:
        read_example(example)
    assert "\n" not in str(told.value)


def test_a_tokenizer_gives_keyword_arguments() -> None:
    call = read_example(BatchEncoding({"input_ids": torch.ones(2, 3), "attention_mask": torch.ones(2, 3)}))
    assert list(call.kwargs) == ["input_ids", "attention_mask"]
    assert call.batch == 2


trees = st.recursive(
    st.builds(lambda rows, columns: torch.ones(rows, columns), st.integers(1, 3), st.integers(1, 3)),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.sampled_from("abc"), inner, min_size=1)
    ),
    max_leaves=6,
)


@settings(max_examples=50, deadline=None)
@given(trees)
def test_a_call_keeps_the_form_of_its_arguments(tree: Any) -> None:
    call = ModelCall((tree, None), {"more": tree, "flag": True})
    changed = call.map(lambda tensor: tensor + 1)
    assert len(changed.tensors) == len(call.tensors) == 2 * len(tensors_in(tree))
    assert all(torch.equal(new, old + 1) for new, old in zip(changed.tensors, call.tensors, strict=True))
    back = changed.map(lambda tensor: tensor - 1)
    assert str(back) == str(call)
    kept = [tensor for tensor in call.tensors if len(tensor) != call.batch]
    assert [t.shape for t in call.first().tensors if len(t) != 1] == [t.shape for t in kept if len(t) != 1]


def test_tensors_without_a_batch_are_not_cut() -> None:
    call = read_example({"x": torch.ones(4, 3), "step": torch.tensor(7), "table": torch.ones(9, 2)})
    shapes = [tuple(tensor.shape) for tensor in call.first().tensors]
    assert shapes == [(1, 3), (), (9, 2)]
    assert read_example({"step": torch.ones(1), "x": torch.ones(4, 3), "y": torch.ones(4)}).batch == 4, "of most"
    assert read_example((torch.ones(2, 3), torch.ones(5))).batch == 2, "of the first"
    assert call.double().tensors[0].dtype == torch.float64
    assert call.double().tensors[1].dtype == torch.int64


def test_names_are_those_of_the_arguments() -> None:
    assert read_example(X).names(Plain()) == ["input"]
    assert read_example((X, ZERO)).names(Two()) == ["x", "shift"]
    assert read_example({"pixels": X, "scale": 2.0}).names(Named()) == ["pixels"]
    assert read_example(({"pair": (X, ZERO)},)).names(Nested()) == ["given_0", "given_1"]
    assert len(set(read_example({"a": [X, X], "a_0": X}).names(Anything()))) == 3
    assert read_example((X, X)).names(Anything()) == ["input_0", "input_1"]


# Batches of data loaders


class Optional(nn.Module):
    """An argument with a default, as of many networks: labels must not be taken for it."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x if mask is None else x * mask


class Anything(nn.Module):
    def forward(self, *args: Tensor, **kwargs: Tensor) -> int:
        return len(args) + len(kwargs)


def test_labels_are_left_out() -> None:
    labels = torch.arange(4)
    assert len(batch_call(Plain(), X).tensors) == 1
    assert batch_call(Plain(), (X, labels)).tensors == [X]
    assert batch_call(Plain(), [X, "a label"]).args == (X,)
    assert batch_call(Optional(), (X, labels)).args == (X,)
    assert batch_call(Anything(), (X, labels)).args == (X,)
    assert batch_call(Two(), (X, ZERO, labels)).args == (X, ZERO)
    assert list(batch_call(Named(), {"pixels": X, "labels": labels}).kwargs) == ["pixels", "labels"], "it takes them"
    assert list(batch_call(Optional(), UserDict(x=X, mask=X, labels=labels)).kwargs) == ["x", "mask"]
    assert list(batch_call(Anything(), {"x": X, "labels": labels}).kwargs) == ["x", "labels"]
    assert list(batch_call(Named(), ({"pixels": X}, labels)).kwargs) == ["pixels"]
    assert batch_call(Nested(), ({"pair": (X, ZERO)}, labels)).tensors == [X, ZERO]


def test_the_example_determines_which_parts_are_inputs() -> None:
    like = read_example((X, X))
    assert batch_call(Optional(), (X, X, torch.arange(4)), like).args == (X, X)
    named = read_example({"x": X})
    assert list(batch_call(Optional(), {"x": X, "mask": X}, named).kwargs) == ["x"]
    assert batch_call(Optional(), {"labels": ZERO, "mask": ZERO, "x": X}, like).args == (X, ZERO), (
        "by name, in their order"
    )
    options = batch_call(Named(), {"labels": ZERO, "pixels": X}, read_example({"pixels": X + 1, "scale": 2.0}))
    assert options == ModelCall((), {"pixels": X, "scale": 2.0})
    with pytest.raises(ConfigError, match="A batch has 1 parts, and Optional takes 2 arguments in the example"):
        batch_call(Optional(), (X,), like)
    with pytest.raises(ConfigError, match="A batch has no 'x', which the example has: it has mask"):
        batch_call(Optional(), {"mask": X}, named)
    with pytest.raises(ConfigError, match="takes keyword arguments in the example"):
        batch_call(Optional(), (X,), named)


def test_batches_that_do_not_fit_raise() -> None:
    with pytest.raises(ConfigError, match="A batch has 1 parts, and Two takes 2 arguments: give as many, or a dict"):
        batch_call(Two(), (X,))
    with pytest.raises(ConfigError, match="A batch has 'pixel', which Plain does not take: it takes x; if its only"):
        batch_call(Plain(), {"pixel": X})


# Outputs


def test_outputs_by_name() -> None:
    one, two = torch.ones(1), torch.ones(2)
    assert list(named_tensors(one)) == ["output"]
    assert list(named_tensors((one, (two, None)))) == ["output_0", "output_1_0"]
    assert list(named_tensors(Pair(one, two))) == ["scores", "doubled"]
    assert list(named_tensors(Found(one))) == ["logits"]
    output = CausalLMOutputWithPast(logits=one, past_key_values=object(), hidden_states=(one, two))
    assert list(named_tensors(output)) == ["logits", "hidden_states_0", "hidden_states_1"]
    assert list(named_tensors({"a": (one,), "a_0": two}).values()) == [one, two], "no name is lost"
    assert tensors_in(UserDict(a=one)) == [one]
    assert tensors_in("text") == tensors_in(None) == tensors_in(object()) == []


def test_the_main_output() -> None:
    one, two = torch.ones(1), torch.ones(2)
    for output in (one, (one, two), {"logits": one, "more": two}, {"any": one}, Found(one), [one, "x"]):
        assert main_output(output) is one
    for unclear in ({"a": one, "b": two}, {}, "text"):
        with pytest.raises(ConfigError, match="return the logits alone"):
            main_output(unclear)


def test_an_output_twice_and_an_input_as_output_have_tensors_of_their_own() -> None:
    class Same(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            y = x + 1
            return y, y, x

    x = torch.zeros(2)
    found = TensorFunction(Same(), ModelCall((x,)))(x)
    assert len({id(tensor) for tensor in (x, *found)}) == 4
    assert [float(tensor.sum()) for tensor in found] == [2.0, 2.0, 0.0]
