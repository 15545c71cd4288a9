"""`shrink` on networks of several kinds: transformers' and own language models, vision transformers, recurrent networks, half precision."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import paretorch as pt
from paretorch.workflows.shrink import shrink_network
from tests.workflows.shrink.networks import images, tokens


class _Vision(nn.Module):
    """Patches, a class token, two blocks of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 2, stride=2)
        self.token = nn.Parameter(torch.zeros(1, 1, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        found = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.blocks(torch.cat([self.token.expand(len(x), -1, -1), found], 1))[:, 0])


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.head = nn.Embedding(32, 24), nn.LSTM(24, 24, 2, dropout=0.3), nn.Linear(24, 32)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        found, states = self.lstm(self.embedding(x))
        return self.head(found), states


class _Decoder(nn.Module):
    """From noise to images: outputs are no logits."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ConvTranspose2d(16, 16, 4)
        self.norm = nn.BatchNorm2d(16)
        self.last = nn.ConvTranspose2d(16, 3, 4, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.last(torch.relu(self.norm(self.first(x)))))


@pytest.mark.parametrize("kind", ["vision", "recurrent", "decoder", "half"])
def test_networks_of_several_kinds_shrink(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, batches = {
        "vision": (_Vision(), images(6)),
        "recurrent": (_Recurrent(), tokens(6)),
        "decoder": (_Decoder(), [torch.randn(8, 16, 1, 1) for _ in range(6)]),
        "half": (_Vision().bfloat16(), [x.bfloat16() for x in images(6)]),
    }[kind]
    budget = "1/5" if kind != "half" else "1/3"
    found = shrink_network(model, batches, budget=budget, steps=4)
    pt.save(found.model, tmp_path / "small.pare")
    assert (tmp_path / "small.pare").stat().st_size == found.record["bytes"] <= found.record["budget"]
    outputs, expected = found.model(batches[0]), copy.deepcopy(model).eval()(batches[0])
    ours, theirs = (each[0] if isinstance(each, tuple) else each for each in (outputs, expected))
    ours, theirs = ours.detach(), theirs.detach()
    assert float((ours - theirs).float().square().mean() / theirs.float().square().mean()) < 0.3


@pytest.mark.parametrize("family", ["causal", "encoder"])
def test_networks_of_transformers_shrink(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    if family == "causal":
        config = transformers.LlamaConfig(**sizes, intermediate_size=48, tie_word_embeddings=True)
        model = transformers.LlamaForCausalLM(config)
    else:
        model = transformers.BertModel(transformers.BertConfig(**sizes, intermediate_size=48))
    mask = torch.ones(8, 12, dtype=torch.long)
    mask[:, 9:] = 0
    batches = [{"input_ids": x, "attention_mask": mask} for x in tokens(5)]
    found = shrink_network(model, batches, budget="1/4", steps=3)
    assert found.record["bytes"] <= found.record["budget"]
    assert found.record["post_trained_distance"] < 0.1
    if family == "causal":
        assert found.model.get_input_embeddings().weight is found.model.get_output_embeddings().weight  # type: ignore[operator, union-attr]
