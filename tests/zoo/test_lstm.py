"""The LSTM language model."""

import pytest
import torch

from paretorch.errors import ConfigError
from paretorch.zoo import build
from paretorch.zoo.networks.lstm import LanguageModel, LockedDropout, detach


def _tiny(**options: float) -> LanguageModel:
    torch.manual_seed(0)
    network = build("lstm-6", vocabulary=11, embedding=5, **options)
    assert isinstance(network, LanguageModel)
    return network


def test_parameter_count() -> None:
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in build("lstm-300", vocabulary=10_000).parameters())
    layers = sum(4 * 300 * (inputs + 300 + 2) for inputs in (200, 300, 300))
    assert count == 10_000 * 200 + layers + 301 * 10_000


def test_the_state_carries_the_text_on() -> None:
    network = _tiny().eval()
    tokens = torch.randint(11, (9, 2))
    whole, _ = network(tokens)
    first, state = network(tokens[:4])
    second, _ = network(tokens[4:], state)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    assert whole.shape == (9, 2, 11)
    assert [tuple(hidden.shape) for hidden, _ in state] == [(1, 2, 6)] * 3


def test_without_dropout_training_equals_evaluation() -> None:
    network = _tiny(dropout_input=0, dropout_hidden=0, dropout_output=0, dropout_weight=0)
    tokens = torch.randint(11, (5, 2))
    assert torch.equal(network.train()(tokens)[0], network.eval()(tokens)[0])


@pytest.mark.parametrize("kind", ["dropout_input", "dropout_hidden", "dropout_output", "dropout_weight"])
def test_every_dropout_acts_in_training_only(kind: str) -> None:
    rates = {f"dropout_{place}": 0.0 for place in ("input", "hidden", "output", "weight")} | {kind: 0.5}
    network = _tiny(**rates)
    tokens = torch.randint(11, (5, 2))
    assert not torch.equal(network(tokens)[0], network(tokens)[0])
    network.eval()
    assert torch.equal(network(tokens)[0], network(tokens)[0])


def test_dropped_recurrent_weights_still_learn() -> None:
    network = _tiny()
    before = network.layers[0].weight_hh_l0.clone()
    network(torch.randint(11, (5, 2)))[0].sum().backward()
    assert network.layers[0].weight_hh_l0.grad.abs().sum() > 0
    assert torch.equal(network.layers[0].weight_hh_l0, before), "the stored weights are whole"


def test_dropout_is_locked_over_time() -> None:
    out = LockedDropout(0.5)(torch.ones(7, 3, 20))
    assert torch.equal(out, out[:1].expand_as(out))
    assert sorted(set(out.flatten().tolist())) == [0.0, 2.0]


def test_tied() -> None:
    network = build("lstm-6", vocabulary=11, embedding=6, tied=True)
    assert network.decoder.weight is network.embedding.weight
    with pytest.raises(ConfigError, match="embedding == units"):
        build("lstm-6", embedding=5, tied=True)


def test_detach_cuts_the_graph() -> None:
    _, state = _tiny()(torch.randint(11, (3, 2)))
    assert state[0][0].requires_grad
    assert not any(tensor.requires_grad for layer in detach(state) for tensor in layer)
