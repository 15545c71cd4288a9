"""Language modelling by truncated back-propagation through time, chapter 6.

The text is cut into columns that are read side by side, a chunk of `bptt` tokens a step. The network's state at the end
of a chunk is where the next one begins. It lies in a buffer of the model, as a plan's state does: a captured step finds
it at a fixed address, and a checkpoint taken within an epoch holds it.
"""

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paretorch.errors import ConfigError
from paretorch.support.arithmetic import widest_float
from paretorch.training.distillation import Teacher
from paretorch.training.tasks import Batch, derive_seed
from paretorch.zoo.data.text import Text, batchify, chunks
from paretorch.zoo.networks.lstm import LanguageModel as Network
from paretorch.zoo.networks.lstm import State

CARRIED = "paretorch_carried"
CARRIED_TEACHER = "paretorch_carried_teacher"  # on the model too: a checkpoint holds both
_EVALUATION_COLUMNS = 10


class LanguageModel:
    """Cross-entropy of the next token. The state is zero at the start of each epoch and carried on within it.

    Where the columns are no whole number of chunks long, an epoch begins at an offset that is a pure function of (seed,
    epoch), so that no text is left out for good. Evaluation reads ten columns with the state carried from end to end,
    and gives bits per character, loss / ln 2, or perplexity, exp(loss). `attach` comes before training (and before a
    checkpoint is loaded), `release` after it.
    """

    tallies: tuple[str, ...] = ("accuracy",)
    fixed_shapes = True
    compiles = False  # the compiler would unroll the recurrence; the library's own kernel for it is faster
    teacher: Teacher | None = None

    def __init__(
        self,
        text: Text,
        *,
        characters: bool,
        batch: int = 128,
        bptt: int = 150,
        label_smoothing: float = 0.0,
        validation: bool = False,
        seed: int = 0,
        device: torch.device | str = "cpu",
        autocast: bool = False,
    ) -> None:
        self._device = torch.device(device)
        if autocast and self._device.type == "cpu":  # torch's recurrent kernel for it crashes on CPUs without bf16
            raise ConfigError("A language model trains in bf16 on a GPU only; use dtype fp32 or auto on a CPU")
        self._columns = batchify(text.train, batch).to(self._device)
        held_out = text.valid if validation else text.test
        self._held_out = batchify(held_out, max(1, min(_EVALUATION_COLUMNS, len(held_out) // 2))).to(self._device)
        self._characters, self._bptt, self._smoothing = characters, bptt, label_smoothing
        self._seed, self._autocast = seed, autocast
        self.steps, self._rest = divmod(len(self._columns) - 1, bptt)
        if self.steps == 0:
            length = len(self._columns)
            raise ConfigError(f"Columns of {length} tokens are too short for bptt={bptt}: lower bptt or the batch")

    def attach(self, model: nn.Module) -> None:
        """Give the model the buffer of its state, and one for that of its teacher: [layers, hidden and cell, 1, batch, units]."""
        networks = {CARRIED: model} | ({} if self.teacher is None else {CARRIED_TEACHER: self.teacher.model})
        for name, network in networks.items():
            own = cast(Network, network)
            shape = (len(own.layers), 2, 1, self._columns.shape[1], own.units)
            model.register_buffer(name, torch.zeros(shape, device=self._device))

    def release(self, model: nn.Module) -> None:
        """Take it away again."""
        delattr(model, CARRIED)
        if self.teacher is not None:
            delattr(model, CARRIED_TEACHER)

    def epoch(self, number: int) -> Batch:
        start = derive_seed(self._seed, number, 0) % (self._rest + 1)
        text = self._columns[start : start + self.steps * self._bptt + 1]
        rows = text.unfold(0, self._bptt + 1, self._bptt).transpose(1, 2).contiguous()
        goes_on = torch.arange(self.steps, device=self._device) > 0
        return rows, goes_on

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
        logits = self._read_on(model, model.get_buffer(CARRIED), batch)
        targets = batch[0][1:].flatten()
        loss = F.cross_entropy(logits, targets, label_smoothing=self._smoothing)
        if (teacher := self.teacher) is not None:
            carried = model.get_buffer(CARRIED_TEACHER)
            loss = teacher.mix(loss, logits, teacher.outputs(lambda other: self._read_on(other, carried, batch)))
        return loss, ((logits.detach().argmax(1) == targets).float().mean(),)

    def _read_on(self, network: nn.Module, carried: Tensor, batch: Batch) -> Tensor:
        """Logits of a chunk of text, read from the state that is carried, which is moved on."""
        tokens, goes_on = batch
        # Chosen on the device: a captured step must not ask the host whether an epoch begins.
        before = torch.where(goes_on, carried, 0.0)
        logits, after = self._run(network, tokens[:-1], tuple((hidden, cell) for hidden, cell in before))
        with torch.no_grad():
            carried.copy_(torch.stack([torch.stack(pair) for pair in after]))
        return logits

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        total = torch.zeros((), dtype=widest_float(self._device), device=self._device)
        state: State | None = None
        with torch.no_grad():
            for tokens, targets in chunks(self._held_out, self._bptt):
                logits, state = self._run(model, tokens, state)
                total += F.cross_entropy(logits, targets.flatten(), reduction="sum").to(total.dtype)
        loss = float(total) / self._held_out[1:].numel()
        if self._characters:
            return {"test_loss": loss, "test_bpc": loss / math.log(2)}
        return {"test_loss": loss, "test_perplexity": math.exp(min(loss, 700.0))}  # beyond, a float overflows

    def example(self) -> Tensor:
        return self._columns[: min(self._bptt, 8), :1]

    def _run(self, model: nn.Module, tokens: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Logits of every token in fp32, in one row each, and the state after them."""
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._autocast):
            logits, after = model(tokens, state)
        return logits.float().flatten(0, 1), after
