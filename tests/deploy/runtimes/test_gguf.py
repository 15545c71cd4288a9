"""GGUF files: read back bit for bit by the `gguf` package, with llama.cpp's names for networks like Llama."""

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import paretorch as pt
from paretorch.deploy.runtimes import RUNTIMES
from paretorch.errors import ConfigError, PareWarning
from tests.deploy.runtimes.nets import Words, trained

GGUF = sorted(name for name in RUNTIMES if name.startswith("gguf:"))


def llama(tied: bool = False, **options: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 96}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    return LlamaForCausalLM(LlamaConfig(**{**sizes, **heads, "tie_word_embeddings": tied, **options})).eval()


def read(path: Path) -> dict[str, Tensor]:
    found = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        found[tensor.name] = torch.from_numpy(np.array(values)).reshape([int(n) for n in reversed(tensor.shape)])
    return found


def fields(path: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


@pytest.mark.parametrize("runtime", GGUF)
def test_values_are_those_of_the_network(runtime: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    small = trained(Words(), runtime)
    path = pt.export(small, tmp_path / "words.gguf", runtime=runtime)
    found = read(path)
    state = small.state_dict()
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], state[name]) for name in state)
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    assert kinds["up.weight"] == runtime.partition(":")[2]
    assert kinds["up.bias"] == "F32"


@pytest.mark.parametrize("tied", [False, True])
def test_a_llama_has_the_names_and_the_order_of_llama_cpp(tied: bool, tmp_path: Path) -> None:
    model = llama(tied)
    small = pt.compress(model, pt.SMOL(), steps=1, runtime="gguf:Q4_0").finalize()
    path = pt.export(small, tmp_path / "llama.gguf", runtime="gguf:Q4_0")
    found, state = read(path), small.state_dict()
    assert ("output.weight" in found) is not tied
    assert torch.equal(found["token_embd.weight"], state["model.embed_tokens.weight"])
    assert torch.equal(found["blk.1.ffn_down.weight"], state["model.layers.1.mlp.down_proj.weight"])
    queries = state["model.layers.0.self_attn.q_proj.weight"].view(4, 2, 32, 256)
    assert torch.equal(found["blk.0.attn_q.weight"].view(4, 32, 2, 256), queries.transpose(1, 2))
    metadata = fields(path)
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.attention.head_count_kv"] == 2
    assert metadata["llama.rope.freq_base"] == 10000.0
    assert metadata["tokenizer.ggml.model"] == "no_vocab"


def test_bytes_follow_the_bits(tmp_path: Path) -> None:
    small = pt.compress(llama(tied=True), pt.SMOL(), steps=1, runtime="gguf:Q4_0").finalize()
    path = pt.export(small, tmp_path / "llama.gguf", runtime="gguf:Q4_0")
    weights = sum(p.numel() for p in small.parameters() if p.dim() > 1)
    assert path.stat().st_size <= weights * 4.5 / 8 + 12_000


def tokenizer(kind: str) -> Any:
    from tokenizers import Tokenizer, models

    if kind == "unigram":
        return Tokenizer(models.Unigram([("a", -1.0), ("b", -2.0)]))
    vocab = {"<unk>": 0, "a": 1, "b": 2, "ab": 3}
    if kind == "spelled":
        vocab |= {f"<0x{byte:02X}>": 4 + byte for byte in range(8)}
    found = Tokenizer(models.BPE(vocab, [("a", "b")], byte_fallback=kind == "spelled"))
    found.add_special_tokens(["<s>"])
    return found


@pytest.mark.parametrize(("kind", "model"), [("spelled", "llama"), ("bytes", "gpt2")])
def test_a_tokenizer_goes_along(kind: str, model: str, tmp_path: Path) -> None:
    small = pt.compress(llama(), pt.SMOL(), steps=1, runtime="gguf:Q8_0").finalize()
    path = pt.export(small, tmp_path / "llama.gguf", runtime="gguf:Q8_0", tokenizer=tokenizer(kind))
    found = fields(path)
    assert found["tokenizer.ggml.model"] == model
    assert found["tokenizer.ggml.tokens"][1:4] == ["a", "b", "ab"]
    assert len(found["tokenizer.ggml.tokens"]) == 96
    special = found["tokenizer.ggml.tokens"].index("<s>")
    assert found["tokenizer.ggml.token_type"][special] == 3
    assert found["tokenizer.ggml.token_type"][95] == 5
    if kind == "spelled":
        assert found["tokenizer.ggml.scores"][3] == 0.0
        assert found["tokenizer.ggml.token_type"][4] == 6
    else:
        assert found["tokenizer.ggml.merges"] == ["a b"]


def test_weights_off_the_grid_are_exact_and_named(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Words()
    with pytest.warns(
        PareWarning, match=re.escape("has 4 weights in fp16 or fp32, since they lie on no grid of 'gguf:Q4_0'")
    ):
        path = pt.export(model, tmp_path / "dense.gguf", runtime="gguf:Q4_0")
    assert torch.equal(read(path)["up.weight"], model.up.weight.detach())


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (lambda: Words(), {"runtime": "gguf:Q3_K"}, "runtime='gguf:Q3_K' is not known"),
        (lambda: Words(), {"runtime": "openvino"}, "give example=, a batch of inputs"),
        (lambda: Words(), {"runtime": "gguf:Q8_0", "tokenizer": object()}, "is for networks like Llama"),
        (lambda: llama(), {"runtime": "gguf:Q8_0", "tokenizer": object()}, "takes a fast tokenizer of transformers"),
        (lambda: llama(), {"runtime": "gguf:Q8_0", "tokenizer": tokenizer("unigram")}, "of type BPE, not Unigram"),
        (
            lambda: llama(vocab_size=3),
            {"runtime": "gguf:Q8_0", "tokenizer": tokenizer("bytes")},
            "has 5 tokens, and the",
        ),
        (
            lambda: llama(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}),
            {"runtime": "gguf:Q8_0"},
            "not rope_type='linear'",
        ),
    ],
)
def test_what_cannot_work_is_refused(model: Any, options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        pt.export(model(), tmp_path / "model.gguf", **options)
    assert list(tmp_path.iterdir()) == []
