"""Encoder-decoder Transformer for translation (Vaswani et al., 2017), chapter 5.

The defaults are the size commonly used for IWSLT'14: 6 + 6 layers of 512 units, 4 heads, 1,024 inner units, layer norm
after each residual sum, sinusoidal positions, dropout 0.3. With `tied`, both embeddings and the output layer are one
parameter, which needs a joint vocabulary. Sentences are padded on the right.
"""

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paretorch.errors import ConfigError
from paretorch.zoo.networks import Network


class Attention(nn.Module):
    """softmax(QKᵀ/√d)V in `heads` parts; `mask` is True for keys that a query may attend to."""

    def __init__(self, units: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(units, units)
        self.key = nn.Linear(units, units)
        self.value = nn.Linear(units, units)
        self.out = nn.Linear(units, units)
        for layer in (self.query, self.key, self.value, self.out):
            # initialise queries, keys and values as if they were one matrix
            nn.init.xavier_uniform_(layer.weight, gain=1.0 if layer is self.out else 2**-0.5)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        query, key, value = self._split(self.query(x)), self._split(self.key(memory)), self._split(self.value(memory))
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)
        return self.out(seen.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between them."""

    def __init__(self, units: int, inner: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(units, inner)
        self.relu = nn.ReLU()
        self.linear2 = nn.Linear(inner, units)
        for layer in (self.linear1, self.linear2):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.relu(self.linear1(x)))  # type: ignore[no-any-return]


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each as x ← norm(x + dropout(f(x)))."""

    def __init__(self, units: int, inner: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(units, heads)
        self.norm1 = nn.LayerNorm(units)
        self.forward_layers = FeedForward(units, inner)
        self.norm2 = nn.LayerNorm(units)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(x + self.dropout(self.attention(x, x, mask)))
        return self.norm2(x + self.dropout(self.forward_layers(x)))  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the source, and feed-forward, each as x ← norm(x + dropout(f(x)))."""

    def __init__(self, units: int, inner: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(units, heads)
        self.norm1 = nn.LayerNorm(units)
        self.source_attention = Attention(units, heads)
        self.norm2 = nn.LayerNorm(units)
        self.forward_layers = FeedForward(units, inner)
        self.norm3 = nn.LayerNorm(units)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(x + self.dropout(self.attention(x, x, causal=True)))
        x = self.norm2(x + self.dropout(self.source_attention(x, memory, mask)))
        return self.norm3(x + self.dropout(self.forward_layers(x)))  # type: ignore[no-any-return]


class Transformer(Network):
    """Source [N, S] and target so far [N, T] (starting with `bos`) → logits [N, T, vocabulary] of the next tokens."""

    leave_out: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "sparsity": ("*_embedding", "head"),
        "precision": (),
        "sharing": ("*_embedding", "head"),
    }

    def __init__(
        self,
        vocabulary: int = 10000,
        units: int = 512,
        inner: int = 1024,
        heads: int = 4,
        layers: int = 6,
        dropout: float = 0.3,
        tied: bool = True,
        pad: int = 0,
        bos: int = 1,
        eos: int = 2,
    ) -> None:
        super().__init__()
        if units % heads or units % 2:
            raise ConfigError(f"The units must be even and a multiple of the heads; they are {units} and {heads}")
        self.units, self.pad, self.bos, self.eos = units, pad, bos, eos
        self.source_embedding = nn.Embedding(vocabulary, units)
        self.target_embedding = nn.Embedding(vocabulary, units)
        self.encoder = nn.ModuleList(EncoderLayer(units, inner, heads, dropout) for _ in range(layers))
        self.decoder = nn.ModuleList(DecoderLayer(units, inner, heads, dropout) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(units, vocabulary, bias=False)
        for module in (self.source_embedding, self.target_embedding, self.head):
            nn.init.normal_(module.weight, std=units**-0.5)
        if tied:
            self.target_embedding.weight = self.head.weight = self.source_embedding.weight

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.decode(target, self.encode(source), source)

    def encode(self, source: Tensor) -> Tensor:
        """The memory [N, S, units] of a source."""
        x = self._embed(self.source_embedding, source)
        for layer in self.encoder:
            x = layer(x, self._mask(source))
        return x

    def decode(self, target: Tensor, memory: Tensor, source: Tensor) -> Tensor:
        """Logits of the token after each of `target`. Attention is causal, so padding on the right needs no mask."""
        x = self._embed(self.target_embedding, target)
        for layer in self.decoder:
            x = layer(x, memory, self._mask(source))
        return self.head(x)  # type: ignore[no-any-return]

    @torch.no_grad()
    def greedy(self, source: Tensor, limit: int | None = None) -> Tensor:
        """Translate with the most likely token at each step. Call `eval()` first.

        Args:
            source: [N, S].
            limit: the most tokens to generate, by default twice the length of the source and ten more.

        Returns:
            Tokens [N, T]; each row ends with `eos`, then `pad`.
        """
        memory = self.encode(source)
        tokens = source.new_full((len(source), 1), self.bos)
        done = torch.zeros(len(source), dtype=torch.bool, device=source.device)
        for _ in range(2 * source.shape[1] + 10 if limit is None else limit):
            following = self.decode(tokens, memory, source)[:, -1].argmax(1).masked_fill(done, self.pad)
            tokens = torch.cat([tokens, following[:, None]], 1)
            done = done | (following == self.eos)
            if done.all():
                break
        return tokens[:, 1:]

    def _mask(self, source: Tensor) -> Tensor:
        return (source != self.pad)[:, None, None, :]

    def _embed(self, embedding: nn.Embedding, tokens: Tensor) -> Tensor:
        x = embedding(tokens) * math.sqrt(self.units)
        return self.dropout(x + positions(tokens.shape[1], self.units, x.device).to(x.dtype))  # type: ignore[no-any-return]


def positions(length: int, units: int, device: torch.device) -> Tensor:
    """sin(t·ω) in the first half of the units and cos(t·ω) in the second, ω from 1 down to 1/10,000."""
    half = units // 2
    rates = torch.exp(torch.arange(half, device=device) * (-math.log(10000.0) / max(1, half - 1)))
    angles = torch.arange(length, device=device)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], 1)
