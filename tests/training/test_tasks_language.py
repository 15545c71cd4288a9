"""Language modelling: chunks in order, the state carried on the model, bits per character and perplexity."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from paretorch import zoo
from paretorch.errors import ConfigError
from paretorch.training.tasks.language import CARRIED, LanguageModel
from paretorch.zoo.data.text import Text
from paretorch.zoo.networks.lstm import detach


def _text(train: int = 60, test: int = 23, vocabulary: int = 5) -> Text:
    generator = torch.Generator().manual_seed(0)
    streams = [torch.randint(vocabulary, (count,), generator=generator) for count in (train, 15, test)]
    return Text(*streams, vocabulary=tuple("abcdefgh"[:vocabulary]))


def _network(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(1)
    rates = {f"dropout_{name}": dropout for name in ("input", "hidden", "output", "weight")}
    return zoo.build("lstm-4", vocabulary=5, embedding=3, layers=2, **rates)


@settings(max_examples=25, deadline=None)
@given(
    length=st.integers(20, 90), batch=st.integers(1, 4), bptt=st.integers(1, 4), seed=st.integers(0, 9),
    number=st.integers(0, 9),
)  # fmt: skip
def test_chunks_follow_each_other_in_every_column(length: int, batch: int, bptt: int, seed: int, number: int) -> None:
    text = _text(length)
    task = LanguageModel(text, characters=True, batch=batch, bptt=bptt, seed=seed)
    rows, goes_on = task.epoch(number)
    assert rows.shape == (task.steps, bptt + 1, batch)
    assert goes_on.tolist() == [False] + [True] * (task.steps - 1)
    assert torch.equal(rows[1:, 0], rows[:-1, -1])  # the last target is the next input
    read = torch.cat([rows[:, :-1].flatten(0, 1), rows[-1:, -1]])
    column = text.train[: length // batch]
    starts = range(len(column) - len(read) + 1)
    assert any(torch.equal(read[:, 0], column[start : start + len(read)]) for start in starts)


def test_the_offset_reaches_the_end_of_the_text() -> None:
    text = Text(torch.arange(53), torch.arange(4), torch.arange(4), vocabulary=())
    task = LanguageModel(text, characters=True, batch=1, bptt=10)
    epochs = [task.epoch(number)[0] for number in range(40)]
    assert {int(rows[0, 0]) for rows in epochs} == {0, 1, 2}
    assert max(int(rows[-1, -1]) for rows in epochs) == 52


def test_training_is_that_of_a_plain_loop_with_the_state_handed_on() -> None:
    text = _text()
    task, model, plain = LanguageModel(text, characters=True, batch=2, bptt=7), _network(), _network()
    task.attach(model)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.5) for one in (model, plain)]
    for epoch in range(2):
        state = None
        for batch in zip(*task.epoch(epoch), strict=True):
            loss, _ = task.loss(model, batch)
            logits, state = plain(batch[0][:-1], state if state is None else detach(state))
            expected = F.cross_entropy(logits.flatten(0, 1), batch[0][1:].flatten())
            assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
            for optimizer, value in zip(optimizers, (loss, expected), strict=True):
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
    task.release(model)
    assert list(model.state_dict()) == list(plain.state_dict())
    for one, two in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-6)


def test_the_state_stays_at_its_address_and_is_in_the_model_s_state() -> None:
    task, model = LanguageModel(_text(), characters=True, batch=2, bptt=7), _network()
    task.attach(model)
    buffer = model.get_buffer(CARRIED)
    rows, goes_on = task.epoch(0)
    task.loss(model, (rows[0], goes_on[0]))
    assert model.get_buffer(CARRIED) is buffer
    assert buffer.abs().sum() > 0
    assert torch.equal(model.state_dict()[CARRIED], buffer)
    buffer.fill_(float("inf"))  # the first chunk of an epoch looks at none of it
    assert math.isfinite(task.loss(model, (rows[0], goes_on[0]))[0].item())


@pytest.mark.parametrize("validation", [False, True])
def test_evaluation_is_the_mean_over_the_held_out_text(validation: bool) -> None:
    text, model = _text(), _network(dropout=0.5).eval()
    held_out = text.valid if validation else text.test
    columns = held_out[: len(held_out) // min(10, len(held_out) // 2) * min(10, len(held_out) // 2)]
    columns = columns.view(min(10, len(held_out) // 2), -1).t()
    with torch.no_grad():
        loss = F.cross_entropy(model(columns[:-1])[0].flatten(0, 1), columns[1:].flatten()).item()
    found = [
        LanguageModel(text, characters=characters, batch=2, bptt=3, validation=validation).evaluate(model)
        for characters in (True, False)
    ]
    assert found[0] == pytest.approx({"test_loss": loss, "test_bpc": loss / math.log(2)}, rel=1e-5)
    assert found[1] == pytest.approx({"test_loss": loss, "test_perplexity": math.exp(loss)}, rel=1e-5)


def test_a_uniform_guess_costs_the_logarithm_of_the_vocabulary() -> None:
    class Uniform(nn.Module):
        def forward(self, tokens: Tensor, state: object) -> tuple[Tensor, object]:
            return torch.zeros(*tokens.shape, 5), state

    assert LanguageModel(_text(), characters=False, batch=2, bptt=3).evaluate(Uniform())[
        "test_perplexity"
    ] == pytest.approx(5)


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="too short for bptt=50"):
        LanguageModel(_text(), characters=True, batch=2, bptt=50)
    with pytest.raises(ConfigError, match="too short for a batch of 40"):
        LanguageModel(_text(), characters=True, batch=40, bptt=5)
    with pytest.raises(ConfigError, match="bf16 on a GPU only"):
        LanguageModel(_text(), characters=True, batch=2, bptt=5, autocast=True)
