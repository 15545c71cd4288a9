"""Language models with keys and values as inputs and outputs: onnxruntime generates what torch does, token by token."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import paretorch as pt
from paretorch.errors import ConfigError
from tests.deploy.runtimes.nets import Words
from tests.deploy.runtimes.test_gguf import llama

_NEW = 6  # tokens that are generated


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(n_embd=64, n_layer=1, n_head=4, vocab_size=96, n_positions=32, **ends)).eval()


def tiny_llama(**options: Any) -> nn.Module:
    return llama(hidden_size=64, intermediate_size=96, num_hidden_layers=1, **options)


def prompt(model: nn.Module, rows: int = 2, length: int = 7, padding: int = 0) -> dict[str, Tensor]:
    """Padding stands on the left of the first row, and positions count from behind it."""
    torch.manual_seed(1)
    ids = torch.randint(1, 96, (rows, length))
    mask = torch.ones_like(ids)
    mask[0, :padding] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}


@torch.no_grad()
def generated(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Tokens and logits by torch, which computes the whole sequence again for each of them."""
    ids, mask, positions = inputs["input_ids"], inputs["attention_mask"], inputs["position_ids"]
    for i in range(_NEW):
        logits = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
        if i < _NEW - 1:
            ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
            positions = torch.cat([positions, positions[:, -1:] + 1], 1)
    return ids, logits


def generated_by_file(path: Path, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Tokens and logits by onnxruntime, which sees each token once."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    rows = len(inputs["input_ids"])
    past = {
        one.name: np.zeros([rows, one.shape[1], 0, one.shape[3]], dtype=np.float32)
        for one in session.get_inputs()
        if one.name.startswith("past_key_values.")
    }
    feed = {name: tensor.numpy() for name, tensor in inputs.items() if name in names}
    ids, every = feed["input_ids"], []
    for _ in range(_NEW):
        found = dict(zip([one.name for one in session.get_outputs()], session.run(None, {**feed, **past}), strict=True))
        every.append(found["logits"])
        past = {name: found[name.replace("past_key_values", "present")] for name in past}
        token = found["logits"][:, -1:].argmax(-1)
        ids = np.concatenate([ids, token], 1)
        feed["input_ids"] = token
        if "attention_mask" in feed:
            feed["attention_mask"] = np.concatenate([feed["attention_mask"], np.ones_like(token)], 1)
        if "position_ids" in feed:
            feed["position_ids"] = feed["position_ids"][:, -1:] + 1
    return torch.from_numpy(ids[:, :-1]), torch.from_numpy(np.concatenate(every, 1))


def test_a_gpt2_generates_the_same_tokens(tmp_path: Path) -> None:
    model = gpt2()
    path = pt.export_onnx(model, prompt(model)["input_ids"], tmp_path / "gpt2.onnx", cache=True)
    graph = onnx.load(path).graph
    assert [one.name for one in graph.input] == ["input_ids", "past_key_values.0.key", "past_key_values.0.value"]
    assert [one.name for one in graph.output] == ["logits", "present.0.key", "present.0.value"]
    dims = [dim.dim_param or dim.dim_value for dim in graph.output[1].type.tensor_type.shape.dim]
    assert dims == ["batch", 4, "past + sequence", 16]
    for rows, length in ((1, 4), (3, 1)):
        inputs = prompt(model, rows, length)
        (ids, logits), (wanted, expected) = generated_by_file(path, inputs), generated(model, inputs)
        assert torch.equal(ids, wanted)
        assert torch.allclose(logits, expected, atol=1e-4)


def generates_alike(runtime: str, path: Path, padding: int) -> Counter[str]:
    """The operators of the file of a few-bit Llama, when its tokens and logits are those of torch."""
    small = pt.compress(tiny_llama(), pt.SMOL(), steps=1, runtime=runtime).finalize()
    pt.export(small, path, runtime=runtime, example=prompt(small), cache=True)
    inputs = prompt(small, 2, 5, padding)
    (ids, logits), (wanted, expected) = generated_by_file(path, inputs), generated(small, inputs)
    assert torch.equal(ids, wanted)
    assert torch.allclose(logits[:, padding:], expected[:, padding:], atol=1e-4)
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def test_a_llama_of_few_bits_generates_the_same_tokens(tmp_path: Path) -> None:
    """Rows with padding on the left too; weights stay packed."""
    found = generates_alike("onnxruntime-int4", tmp_path / "llama.onnx", padding=2)
    assert found["MatMulNBits"] == 8
    assert found["GatherBlockQuantized"] == 1


@pytest.mark.contract
@pytest.mark.parametrize("runtime", ["onnxruntime-int8", "openvino"])
def test_other_runtimes_generate_the_same_tokens(runtime: str, tmp_path: Path) -> None:
    generates_alike(runtime, tmp_path / "llama.onnx", padding=0)


class Plain(nn.Module):
    """Takes a cache, and gives none."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, 8)

    def forward(self, input_ids: Tensor, past_key_values: Any = None, use_cache: bool = False) -> dict[str, Tensor]:
        return {"logits": self.embedding(input_ids)}


_IDS = torch.ones(2, 7, dtype=torch.int64)


@pytest.mark.parametrize(
    ("model", "example", "options", "words"),
    [
        (Words, _IDS, {}, "language models of transformers, which take past_key_values: leave it out for a Words"),
        (Plain, _IDS, {}, "keep keys and values of every layer: leave it out for a Plain"),
        (Plain, _IDS[:, :4], {}, "give an example with 5 tokens or more in each row"),
        (Plain, torch.randn(2, 7), {}, "give an example with 5 tokens or more in each row"),
        (Plain, {"input_ids": _IDS, "past_key_values": (_IDS,)}, {}, "makes inputs of past_key_values: leave them out"),
        (Plain, (_IDS, None, "yes"), {}, None),
        (Plain, _IDS, {"calibrate": [_IDS]}, "cache=True and calibrate= do not go together"),
    ],
)
def test_what_cannot_work_is_refused(
    model: type[nn.Module], example: Any, options: dict[str, Any], words: str | None, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(words or "keep keys and values of every layer")):
        pt.export_onnx(model().eval(), example, tmp_path / "net.onnx", cache=True, **options)
    assert list(tmp_path.iterdir()) == []


def test_other_files_have_no_cache(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape("cache= is for ONNX files: leave it out for runtime='gguf:Q4_0'")):
        pt.export(Words(), tmp_path / "net.gguf", runtime="gguf:Q4_0", cache=True)


def test_a_network_that_computes_otherwise_with_a_cache_is_refused(tmp_path: Path) -> None:
    model = tiny_llama()
    real = model.forward

    class Forgetful(type(model)):  # type: ignore[misc]
        def forward(self, input_ids: Any = None, past_key_values: Any = None, use_cache: Any = None) -> Any:
            if past_key_values is not None and past_key_values.layers:
                past_key_values.layers[0].values = past_key_values.layers[0].values * 0
            return super().forward(input_ids=input_ids, past_key_values=past_key_values, use_cache=use_cache)

    model.__class__ = Forgetful
    assert real is not None
    with pytest.raises(ConfigError, match="itself gives other logits with a cache of 4 tokens than without"):
        pt.export_onnx(model, _IDS, tmp_path / "net.onnx", cache=True)
