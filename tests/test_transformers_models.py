"""Models of transformers while they are compressed: what they are asked for by name, beside training."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import paretorch as pt
from paretorch.errors import ConfigError

TOKENS = torch.arange(16)[None] % 7
_SMALL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def gpt() -> Any:
    options = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2, **options)
    return transformers.GPT2LMHeadModel(config)


def bert() -> Any:
    return transformers.BertForMaskedLM(transformers.BertConfig(**_SMALL, max_position_embeddings=16))


def llama(tied: bool = True) -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_SMALL, tie_word_embeddings=tied))


METHODS = (pt.ContinuousSparsification(target=0.5), pt.SMOL(target_bits=4.0))


@pytest.mark.parametrize("build", [gpt, bert, llama])
def test_saved_while_searching(build: Any, tmp_path: Path) -> None:
    """Tied weights have two names and one set of decisions. What is read back is the network as it is trained."""
    model = build()
    plan = pt.compress(model, *METHODS, steps=3)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.1)
    model(input_ids=TOKENS, labels=TOKENS).loss.backward()
    optimizer.step()
    plan.step()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for phase in ("searching", "hardened"):
        model.save_pretrained(tmp_path / phase)
        again = type(model).from_pretrained(tmp_path / phase)
        own = again.state_dict()
        assert all(torch.equal(own[name], model.state_dict()[name]) for name in own)
        if phase == "searching":
            assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
            plan.harden(optimizer)
    small = plan.finalize().eval()
    small.save_pretrained(tmp_path / "small")
    again = type(small).from_pretrained(tmp_path / "small").eval()
    assert torch.equal(again(TOKENS).logits, small(TOKENS).logits)


@pytest.mark.parametrize("build", [gpt, bert, llama, lambda: llama(tied=False)])
@pytest.mark.parametrize("use", ["step", "finalize", "eval", "hardened"])
def test_resized_while_searching(build: Any, use: str) -> None:
    """The decisions are those of the old rows: whatever comes next says so, and other networks train on."""
    model = build()
    plan = pt.compress(model, *METHODS, steps=3)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.1)
    model.resize_token_embeddings(70)

    def step() -> None:
        model(input_ids=TOKENS, labels=TOKENS).loss.backward()
        optimizer.step()

    def preview() -> None:
        with plan.hardened():
            pass

    uses = {"step": step, "finalize": plan.finalize, "eval": model.eval, "hardened": preview}
    with pytest.raises(ConfigError, match=r"is \(70, 16\) now, and was \(64, 16\).* before compress or after finalize"):
        uses[use]()
    other = torch.nn.Linear(2, 2)
    other(torch.ones(1, 2)).sum().backward()
    torch.optim.SGD(other.parameters(), lr=0.1).step()


def test_resized_before_and_after(tmp_path: Path) -> None:
    model = gpt()
    model.resize_token_embeddings(70)
    plan = pt.compress(model, *METHODS, steps=1)
    model(input_ids=TOKENS, labels=TOKENS).loss.backward()
    small = plan.finalize()
    small.resize_token_embeddings(72)
    pt.save(small, tmp_path / "x.pare")
    other = gpt()
    other.resize_token_embeddings(72)
    again = pt.load(tmp_path / "x.pare", into=other).eval()
    assert torch.equal(again(TOKENS).logits, small.eval()(TOKENS).logits)
