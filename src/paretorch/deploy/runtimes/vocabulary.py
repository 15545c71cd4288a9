"""The vocabulary of a tokenizer as the metadata of a GGUF file."""

from __future__ import annotations

import json
from typing import Any

from paretorch.errors import ConfigError

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
