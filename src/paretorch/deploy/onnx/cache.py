"""Language models of transformers with the keys and values of earlier tokens as inputs and outputs, for generation token by token.

    logits, present.0.key, present.0.value, … = network(input_ids, …, past_key_values.0.key, past_key_values.0.value, …)

Keys and values are (batch, heads, length, size of a head), and names are those of optimum and onnxruntime-genai. Each layer's present is its
past with the new tokens behind it. A past of length 0 is that of a prompt. The attention mask covers past and new tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.deploy.onnx.graph import BATCH, SEQUENCE
from paretorch.errors import ConfigError, MissingExtraError
from paretorch.support.eval_mode import checked_example
from paretorch.support.inputs import ModelCall, named_tensors, parameters_of, parts_of

PAST_LENGTH = "past"
TOTAL_LENGTH = f"{PAST_LENGTH} + {SEQUENCE}"
_LEAST = 5  # tokens: the exporter takes lengths of 0 and 1 for constants, and equal ones for one
_CACHE, _MASK, _FLAG = "past_key_values", "attention_mask", "use_cache"
_PAST, _PRESENT = f"{_CACHE}.", "present."
_KINDS = ("key", "value")
_AXIS = 2  # of the length, in keys and values
_CLOSE = 1e-4  # of the largest logit


class CachedModel(nn.Module):
    """A language model as a function of named tensors to named tensors, keys and values among both."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> dict[str, Tensor]:
        past = {name: tensor for name, tensor in inputs.items() if name.startswith(_PAST)}
        others = {name: tensor for name, tensor in inputs.items() if name not in past}
        return _run(self.model, others, _filled_cache(past))


def _run(model: nn.Module, inputs: Mapping[str, Any], cache: Any) -> dict[str, Tensor]:
    output = parts_of(model(**inputs, **{_CACHE: cache, _FLAG: True}))
    others = {name: part for name, part in output.items() if name != _CACHE}
    return {**named_tensors(others), **_present(output.get(_CACHE))}


def _filled_cache(past: Mapping[str, Tensor]) -> Any:
    """Return a cache of transformers with these keys and values, none of which is copied."""
    from transformers.cache_utils import DynamicCache, DynamicLayer

    cache = DynamicCache()
    for i in range(len(past) // len(_KINDS)):
        layer = DynamicLayer()
        layer.keys, layer.values = (past[f"{_PAST}{i}.{kind}"] for kind in _KINDS)
        layer.dtype, layer.device, layer.is_initialized = layer.keys.dtype, layer.keys.device, True
        cache.layers.append(layer)
    return cache


def _present(cache: Any) -> dict[str, Tensor]:
    found = {}
    for i, layer in enumerate(getattr(cache, "layers", ())):
        for kind, tensor in zip(_KINDS, (getattr(layer, "keys", None), getattr(layer, "values", None)), strict=True):
            if isinstance(tensor, Tensor) and tensor.dim() == _AXIS + 2:
                found[f"{_PRESENT}{i}.{kind}"] = tensor
    return found


@dataclass(frozen=True)
class CachedCalls:
    """A network with its cache, and calls of it.

    Args:
        traced: New tokens after a past.
        others: A prompt, a single token, and one row.
        dims: Names of the dynamic dimensions of each tensor of a call.
    """

    model: CachedModel
    traced: ModelCall
    others: tuple[ModelCall, ...]
    dims: Sequence[Mapping[int, str]] = field(repr=False)


def with_cache(model: nn.Module, call: ModelCall) -> CachedCalls:
    """Return the network with its cache as inputs and outputs; raises for one that has no such cache, or computes otherwise with it.

    Args:
        call: A prompt, of two rows or more.
    """
    if find_spec("transformers") is None:
        raise MissingExtraError("cache=True needs transformers: pip install 'paretorch[transformers]'")
    inputs = _prompt(model, call)
    prompt = ModelCall((), inputs)
    length = prompt.sequence
    if length is None or length < _LEAST:
        raise ConfigError(f"cache=True needs a prompt to try: give an example with {_LEAST} tokens or more in each row")
    with checked_example(*prompt.tensors), torch.no_grad():
        whole = _run(model, inputs, _filled_cache({}))
    _check_layers(model, whole)
    past = (length + 2) // 2  # longer than the rest
    splits = {name: ModelCall((), dict(_split(prompt, whole, *ends))) for name, ends in {
        "traced": (past, length), "prompt": (0, length), "token": (length - 1, length)}.items()}  # fmt: skip
    cached = CachedModel(model)
    traced = splits["traced"]
    _check_outputs(cached, traced, whole, past)
    dims = [_dims(name, prompt) for name in traced.kwargs]
    return CachedCalls(cached, traced, (traced.first(), splits["prompt"], splits["token"]), dims)


def _prompt(model: nn.Module, call: ModelCall) -> dict[str, Any]:
    """Return the tensors of an example by name."""
    takes = {one.name for one in parameters_of(model)}
    if not {_CACHE, _FLAG} <= takes:
        raise ConfigError(
            f"cache=True is for language models of transformers, which take {_CACHE}: leave it out for a {type(model).__name__}"
        )
    inputs = {name: part for name, part in call.arguments(model).items() if name != _FLAG and part is not None}
    if _CACHE in inputs:
        raise ConfigError(f"cache=True makes inputs of {_CACHE}: leave them out of the example")
    wrong = next((name for name, part in inputs.items() if not isinstance(part, Tensor)), None)
    if wrong is not None:
        raise ConfigError(f"cache=True takes tensors, and {wrong!r} of the example is none: leave it out")
    return inputs


def _check_layers(model: nn.Module, outputs: Mapping[str, Tensor]) -> None:
    count = sum(name.startswith(_PRESENT) for name in outputs)
    layers = getattr(getattr(model, "config", None), "num_hidden_layers", count // len(_KINDS))
    if count == 0 or count != len(_KINDS) * layers:
        raise ConfigError(
            f"cache=True is for networks that keep keys and values of every layer: leave it out for a {type(model).__name__}"
        )


def _split(prompt: ModelCall, whole: Mapping[str, Tensor], begin: int, end: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the inputs for the tokens from `begin` on, with the keys and values of those before."""
    for name, tensor in prompt.kwargs.items():
        along = prompt.has_sequence(tensor)
        yield name, tensor[:, (0 if name == _MASK else begin) : end] if along else tensor
    for name, tensor in whole.items():
        if name.startswith(_PRESENT):
            yield name.replace(_PRESENT, _PAST), tensor[:, :, :begin].clone()


def _check_outputs(cached: CachedModel, traced: ModelCall, whole: Mapping[str, Tensor], past: int) -> None:
    """Raise if the network itself gives other logits with its cache than without."""
    with checked_example(*traced.tensors), torch.no_grad():
        found = cached(**traced.kwargs)
    name = next(iter(whole))
    wanted = whole[name][:, past:]
    if found[name].shape != wanted.shape or not torch.allclose(
        found[name], wanted, rtol=0, atol=_CLOSE * float(wanted.abs().max())
    ):
        raise ConfigError(
            f"{type(cached.model).__name__} itself gives other {name} with a cache of {past} tokens than without: leave out cache=True"
        )


def _dims(name: str, prompt: ModelCall) -> dict[int, str]:
    if name.startswith(_PAST):
        return {0: BATCH, _AXIS: PAST_LENGTH}
    tensor = prompt.kwargs[name]
    if not prompt.has_batch(tensor):
        return {}
    return {0: BATCH, **({1: TOTAL_LENGTH if name == _MASK else SEQUENCE} if prompt.has_sequence(tensor) else {})}
