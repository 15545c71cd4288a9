"""The 3-layer LSTM language model of Merity et al. (2018), chapter 6, with 300 or 1,000 units in each layer.

The defaults are those of its recipe for the Penn Treebank by characters, to which the batch size, the sequence length and
the bits per character of the thesis belong. Dropout is "locked": one mask for all time steps. Recurrent weights are dropped too (DropConnect), once
per forward pass. The activation regularisers of the paper, zero in that recipe, are not implemented.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paretorch.errors import ConfigError
from paretorch.zoo.networks import Network

State = tuple[tuple[Tensor, Tensor], ...]  # (hidden, cell), each [1, batch, units], for every layer


class LanguageModel(Network):
    """Tokens [time, batch] and the state of the text so far → logits [time, batch, vocabulary] and the new state."""

    leave_out: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "sparsity": ("embedding", "decoder"),
        "precision": (),
        "sharing": ("embedding", "layers.0", "decoder"),
    }

    def __init__(
        self,
        units: int = 300,
        vocabulary: int = 50,
        embedding: int = 200,
        layers: int = 3,
        dropout_input: float = 0.1,
        dropout_hidden: float = 0.25,
        dropout_output: float = 0.1,
        dropout_weight: float = 0.5,
        tied: bool = False,
    ) -> None:
        super().__init__()
        if tied and embedding != units:
            raise ConfigError(f"A tied decoder needs embedding == units; they are {embedding} and {units}")
        if layers < 1:
            raise ConfigError(f"A language model has 1 or more layers, not {layers}")
        for rate in (dropout_input, dropout_hidden, dropout_output, dropout_weight):
            if not 0 <= rate <= 1:
                raise ConfigError(f"A rate of dropout is a number from 0 to 1, not {rate}")
        self.units = units
        self.dropout_weight = dropout_weight
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.layers = nn.ModuleList(nn.LSTM(embedding if layer == 0 else units, units) for layer in range(layers))
        self.dropouts = nn.ModuleList(
            LockedDropout(rate) for rate in (dropout_input, *[dropout_hidden] * (layers - 1), dropout_output)
        )
        self.decoder = nn.Linear(units, vocabulary)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        if tied:
            self.decoder.weight = self.embedding.weight

    def forward(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        x = self.dropouts[0](self.embedding(tokens))
        if state is None:
            zeros = x.new_zeros(1, tokens.shape[1], self.units)
            state = ((zeros, zeros),) * len(self.layers)
        new = []
        for layer, before, dropout in zip(self.layers, state, list(self.dropouts)[1:], strict=True):
            assert isinstance(layer, nn.LSTM)
            x, after = self._run(layer, x, before)
            x = dropout(x)
            new.append(after)
        return self.decoder(x), tuple(new)

    def _run(self, layer: nn.LSTM, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        if not self.training or self.dropout_weight == 0:
            return layer(x, state)  # type: ignore[no-any-return]
        weights: list[Any] = [layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0, layer.bias_hh_l0]
        weights[1] = F.dropout(weights[1], self.dropout_weight)
        out, hidden, cell = torch.lstm(x, state, weights, True, 1, 0.0, True, False, False)
        return out, (hidden, cell)


class LockedDropout(nn.Module):
    """Dropout of [time, batch, features] with one mask for all time steps (Gal & Ghahramani, 2016)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        return x * F.dropout(torch.ones_like(x[:1]), self.rate)


def detach(state: State) -> State:
    """Detach the state from the graph of the text so far, for truncated back-propagation through time."""
    return tuple((hidden.detach(), cell.detach()) for hidden, cell in state)
