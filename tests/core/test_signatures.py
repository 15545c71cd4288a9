"""compress, harden and finalize on networks of any signature do what they do on one tensor."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BatchEncoding, BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

import paretorch as pt
from paretorch.core.channels.couple import couple
from paretorch.errors import ConfigError
from paretorch.support.inputs import read_example, tensors_in
from tests.support.signatures import SIGNATURES, ZERO, Named, Plain, Two, X

_SMALL = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
TOKENS = BatchEncoding(
    {"input_ids": torch.arange(10).view(2, 5), "attention_mask": torch.ones(2, 5, dtype=torch.int64)}
)


def bert() -> BertForSequenceClassification:
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(**_SMALL, max_position_embeddings=8)).eval()


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**_SMALL, num_key_value_heads=2, max_position_embeddings=8)).eval()


def sets(model: torch.nn.Module, example: Any) -> dict[str, list[int]]:
    chosen = {name for name, one in model.named_parameters() if one.dim() > 1}
    coupling = couple(model, example, chosen, "it")
    return {name: list(coupling.mask(name, torch.arange(coupling.count) % 2 == 0, 1).shape) for name in coupling.gates}


@pytest.mark.parametrize(("kind", "example"), SIGNATURES)
def test_channels_are_removed_whatever_the_signature(kind: type[Plain], example: Any) -> None:
    assert sets(kind(), example) == sets(Plain(), X)
    model = kind()
    plan = pt.compress(model, pt.ContinuousSparsification(target=0.5, group="channel"), steps=2, example=example)
    for _ in range(2):
        plan.step()
    plan.harden()
    hardened = tensors_in(read_example(example)(model.eval()))[0]
    small = plan.finalize()
    assert small.first.out_channels + small.second.out_channels < 14
    torch.testing.assert_close(tensors_in(read_example(example)(small))[0], hardened)


@pytest.mark.parametrize(("kind", "example"), SIGNATURES)
def test_activations_are_found_whatever_the_signature(kind: type[Plain], example: Any) -> None:
    found = [pt.compress(model, pt.SMOLActivations(target_bits=3.0), steps=2, example=own).metrics()
             for model, own in ((kind(), example), (Plain(), X))]  # fmt: skip
    assert found[0] == found[1]


LABELS = torch.arange(4) % 3
LOADERS: list[tuple[type[Plain], list[Any]]] = [
    (Plain, [X, X + 1]),
    (Plain, [(X, LABELS), [X + 1, LABELS]]),
    (Two, [(X, ZERO), (X + 1, ZERO)]),
    (Two, [(X, ZERO, LABELS), (X + 1, ZERO, LABELS)]),
    (Two, [{"x": X, "shift": ZERO, "labels": LABELS}, {"x": X + 1, "shift": ZERO}]),
    (Named, [{"pixels": X, "labels": LABELS}, {"pixels": X + 1, "labels": LABELS}]),
]


@pytest.mark.parametrize(("kind", "loader"), LOADERS)
def test_norms_are_estimated_from_batches_of_any_signature(kind: type[Plain], loader: list[Any]) -> None:
    def statistics(model: Plain, batches: list[Any]) -> Tensor:
        plan = pt.compress(model, pt.SMOL(target_bits=4.0), steps=1)
        plan.harden(recalibrate=batches)
        return torch.stack([model.norm.running_mean, model.norm.running_var])

    found, expected = statistics(kind(), loader), statistics(Plain(), [X, X + 1])
    torch.testing.assert_close(found, expected)
    assert float(found[0].abs().sum()) > 0


def test_a_batch_that_does_not_fit_leaves_the_statistics() -> None:
    model = Two()
    plan = pt.compress(model, pt.SMOL(target_bits=4.0), steps=1)
    before = model.norm.running_mean.clone()
    with pytest.raises(ConfigError, match="Two takes 2 arguments"):
        plan.harden(recalibrate=[(X, ZERO), (X,)])
    assert torch.equal(model.norm.running_mean, before)


@pytest.mark.parametrize("build", [bert, llama])
def test_transformers_lose_the_hidden_units_of_their_feed_forward_layers(build: Any) -> None:
    model = build()
    before = sum(one.numel() for one in model.parameters())
    plan = pt.compress(model, pt.ContinuousSparsification(target=0.3, group="channel"), steps=1, example=TOKENS)
    plan.step()
    plan.harden()
    hardened = model(**TOKENS).logits
    small = plan.finalize()
    assert sum(one.numel() for one in small.parameters()) < before
    torch.testing.assert_close(small(**TOKENS).logits, hardened)


def test_an_example_that_does_not_run_names_its_shapes() -> None:
    with pytest.raises(
        ConfigError, match=r"The example of shape \(1, 2, 5, 5\), \(1,\) does not run: .*unexpected keyword"
    ):
        pt.compress(
            Two(), pt.ContinuousSparsification(target=0.5, group="channel"), steps=2, example={"x": X, "y": ZERO}
        )
