"""GGUF files, as llama.cpp and what is built on ggml read them.

A network of transformers with the architecture of Llama gets llama.cpp's own names and metadata, and runs there. Any other network gets
the names of its state, for programs that build its graph themselves. The blocks of the formats:

    Q8_0    fp16 Δ, 32 signed bytes c                                  W = Δ c
    Q4_0    fp16 Δ, 16 bytes: c + 8 of weight i low, of i + 16 high    W = Δ c
    TQ2_0   64 bytes: two bits c + 1 each, of weights i, i + 32, i + 64 and i + 96 of each half; fp16 Δ

Vectors are fp32. A weight on none of the runtime's grids is fp16 if that is exact, else fp32.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from paretorch.deploy.runtimes.read import Stored, read_stored
from paretorch.deploy.runtimes.registry import Runtime
from paretorch.errors import ConfigError
from paretorch.support.files import replacing_checked

Bytes = NDArray[np.uint8]
_LLAMA = ("llama", "mistral")
_FILE_TYPES = {"Q8_0": "MOSTLY_Q8_0", "Q4_0": "MOSTLY_Q4_0", "TQ2_0": "MOSTLY_TQ2_0"}


def write_gguf(model: nn.Module, path: str | Path, runtime: Runtime, tokenizer: Any = None) -> list[str]:
    """Write a plain network and return the names of weights off the runtime's grids; raises if a written weight reads back differently."""
    import gguf

    stored = read_stored(model, runtime)
    names = _llama_names(model) if _is_llama(model) else None
    with replacing_checked(Path(path), ".gguf") as temporary:
        writer = gguf.GGUFWriter(temporary, "llama" if names is not None else _architecture(model))
        if names is not None:
            _add_llama(writer, model)
            add_vocabulary(writer, tokenizer, model.get_input_embeddings().weight.shape[0])  # type: ignore[operator]
        elif tokenizer is not None:
            raise ConfigError(f"tokenizer= is for networks like Llama: leave it out for a {type(model).__name__}")
        writer.add_file_type(getattr(gguf.LlamaFileType, _FILE_TYPES[runtime.name.partition(":")[2]]))
        _add_tensors(writer, model, stored, names)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        _verify(temporary, model, names)
    return [name for name, one in stored.items() if one.steps.size == 0 and runtime.formats(one.site)]


def _architecture(model: nn.Module) -> str:
    return "".join(c for c in type(model).__name__.lower() if c.isalnum()) or "network"


def _is_llama(model: nn.Module) -> bool:
    config = getattr(model, "config", None)
    return getattr(config, "model_type", None) in _LLAMA and hasattr(model, "lm_head")


def _llama_names(model: nn.Module) -> dict[str, str]:
    """Return llama.cpp's names of the parameters; a tied head has none."""
    import gguf

    config: Any = model.config
    known = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    found = {}
    for name, _ in model.named_parameters():
        own = known.get_name(name, try_suffixes=(".weight", ".bias"))
        if own is None:
            raise ConfigError(
                f"{name} has no place in a GGUF file of a Llama: export the network as it came from transformers"
            )
        found[name] = own
    return found


def _add_llama(writer: Any, model: nn.Module) -> None:
    config: Any = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") != "default":
        raise ConfigError(f"GGUF export knows plain rotary embeddings, not rope_type={rope['rope_type']!r}")
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer.add_name(getattr(config, "_name_or_path", "") or type(model).__name__)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(float(rope.get("rope_theta", getattr(config, "rope_theta", 10000.0))))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def _order(model: nn.Module, name: str, rows: int) -> NDArray[np.int64] | None:
    """Return the order of the rows of queries and keys: llama.cpp rotates pairs of neighbours, transformers two halves."""
    config: Any = model.config
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    count = next((number for part, number in heads.items() if f".{part}." in name), None)
    return None if count is None else np.arange(rows).reshape(count, 2, -1).swapaxes(1, 2).reshape(-1)


def _add_tensors(writer: Any, model: nn.Module, stored: Mapping[str, Stored], names: Mapping[str, str] | None) -> None:
    import gguf

    for name, tensor in _tensors(model, names).items():
        one = stored.get(name)
        order = _order(model, name, tensor.shape[0]) if names is not None else None
        written = name if names is None else names[name]
        if one is not None and one.form is not None and not one.form.is_half:
            blocks = _BLOCKS[one.form.name](one.codes, one.steps)
            rows = blocks.reshape(len(blocks), -1)
            kind = getattr(gguf.GGMLQuantizationType, one.form.name)
            writer.add_tensor(written, np.ascontiguousarray(rows if order is None else rows[order]), raw_dtype=kind)
            continue
        values = tensor.detach().cpu().float().numpy()
        values = values if order is None else values[order]
        is_half = one is not None and one.form is not None
        writer.add_tensor(written, np.ascontiguousarray(values.astype(np.float16) if is_half else values))


def _tensors(model: nn.Module, names: Mapping[str, str] | None) -> dict[str, Tensor]:
    """Return what the file holds: parameters once, and for other networks than Llama the buffers of the state."""
    found: dict[str, Tensor] = dict(model.named_parameters())
    if names is None:
        own = {id(parameter) for parameter in found.values()}
        state = model.state_dict(keep_vars=True)
        found |= {name: t for name, t in state.items() if id(t) not in own and t.is_floating_point() and t.dim() > 0}
    return found


def _halves(steps: NDArray[np.float32]) -> Bytes:
    return np.ascontiguousarray(steps.astype("<f2")[..., None]).view(np.uint8)


def _q8_0(codes: NDArray[np.int16], steps: NDArray[np.float32]) -> Bytes:
    return np.concatenate([_halves(steps), codes.astype(np.int8).view(np.uint8)], axis=-1)


def _q4_0(codes: NDArray[np.int16], steps: NDArray[np.float32]) -> Bytes:
    low, high = np.split((codes + 8).astype(np.uint8), 2, axis=-1)
    return np.concatenate([_halves(steps), low | high << 4], axis=-1)


def _tq2_0(codes: NDArray[np.int16], steps: NDArray[np.float32]) -> Bytes:
    parts = (codes + 1).astype(np.uint8).reshape(*codes.shape[:-1], 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    octets = np.bitwise_or.reduce(parts << shifts, axis=-2).astype(np.uint8)
    return np.concatenate([octets.reshape(*codes.shape[:-1], 64), _halves(steps)], axis=-1)


_BLOCKS = {"Q8_0": _q8_0, "Q4_0": _q4_0, "TQ2_0": _tq2_0}


def read_gguf(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a GGUF file as the `gguf` package dequantizes them."""
    import gguf

    found = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        shape = [int(size) for size in reversed(tensor.shape)]
        found[tensor.name] = torch.from_numpy(np.array(values, dtype=np.float32)).reshape(shape)
    return found


def _verify(path: str, model: nn.Module, names: Mapping[str, str] | None) -> None:
    """Raise if the file does not give the values of the network, bit for bit."""
    found = read_gguf(path)
    for name, tensor in _tensors(model, names).items():
        own = found[name if names is None else names[name]]
        order = _order(model, name, tensor.shape[0]) if names is not None else None
        values = tensor.detach().cpu().float()
        if not torch.equal(own, values if order is None else values[torch.from_numpy(order)]):
            raise ConfigError(f"{name} reads back differently from the GGUF file: please report this")


_NORMAL, _CONTROL, _USER, _BYTE, _UNUSED = 1, 3, 4, 6, 5  # llama.cpp's types of tokens


def add_vocabulary(writer: Any, tokenizer: Any, size: int) -> None:
    """Write the tokens of a fast tokenizer; without one the file has no text, and programs give and get numbers.

    Args:
        tokenizer: A `tokenizers.Tokenizer`, or one of transformers that has it as its backend; None: no tokens.
        size: Rows of the embedding: tokens that the tokenizer lacks are named "[unused…]".
    """
    if tokenizer is None:
        writer.add_tokenizer_model("no_vocab")
        return
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(backend, "to_str"):
        raise ConfigError(
            f"tokenizer= takes a fast tokenizer of transformers or tokenizers, not {type(tokenizer).__name__}"
        )
    content = json.loads(backend.to_str())
    model = content["model"]
    if model.get("type") != "BPE":
        raise ConfigError(f"GGUF export knows tokenizers of type BPE, not {model.get('type')}: leave out tokenizer=")
    added = {one["id"]: one for one in content.get("added_tokens", ())}
    tokens = {
        **{number: text for text, number in model["vocab"].items()},
        **{i: one["content"] for i, one in added.items()},
    }
    if tokens and max(tokens) >= size:
        raise ConfigError(
            f"The tokenizer has {max(tokens) + 1} tokens, and the network {size}: give the one that belongs to it"
        )
    merges = [one if isinstance(one, str) else " ".join(one) for one in model["merges"]]
    spelled = bool(model.get("byte_fallback"))  # as sentencepiece has it
    ranks = {text.replace(" ", "", 1): i for i, text in enumerate(merges)}
    texts = [tokens.get(i, f"[unused{i}]") for i in range(size)]
    writer.add_tokenizer_model("llama" if spelled else "gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(texts)
    if spelled:
        writer.add_token_scores([-float(ranks.get(text, len(ranks))) for text in texts])
    else:
        writer.add_token_merges(merges)
    writer.add_token_types([_kind(i, text, tokens, added) for i, text in enumerate(texts)])
    for name, add in (
        ("bos_token_id", writer.add_bos_token_id),
        ("eos_token_id", writer.add_eos_token_id),
        ("unk_token_id", writer.add_unk_token_id),
        ("pad_token_id", writer.add_pad_token_id),
    ):
        number = getattr(tokenizer, name, None)
        if isinstance(number, int):
            add(number)


def _kind(number: int, text: str, tokens: dict[int, str], added: dict[int, Any]) -> int:
    if number not in tokens:
        return _UNUSED
    if number in added:
        return _CONTROL if added[number].get("special") else _USER
    return _BYTE if len(text) == 6 and text.startswith("<0x") and text.endswith(">") else _NORMAL
