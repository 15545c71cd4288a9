"""The translation Transformer."""

import pytest
import torch
from torch.nn import functional as F

from paretorch.errors import ConfigError
from paretorch.zoo import build
from paretorch.zoo.networks.transformer import Attention, Transformer, positions

_PAD, _BOS, _EOS = 0, 1, 2


def _tiny(**options: object) -> Transformer:
    torch.manual_seed(0)
    network = build("transformer", vocabulary=20, units=16, inner=24, heads=4, layers=2, **options)
    assert isinstance(network, Transformer)
    return network


def test_parameter_count() -> None:
    attention, forward, norm = 4 * 513 * 512, 513 * 1024 + 1025 * 512, 2 * 512
    layers = 6 * (attention + forward + 2 * norm) + 6 * (2 * attention + forward + 3 * norm)
    with torch.device("meta"):
        tied, untied = build("transformer"), build("transformer", tied=False)
    assert sum(parameter.numel() for parameter in tied.parameters()) == layers + 10_000 * 512
    assert sum(parameter.numel() for parameter in untied.parameters()) == layers + 3 * 10_000 * 512


def test_tied_weights_are_one_parameter() -> None:
    network = _tiny()
    assert network.source_embedding.weight is network.target_embedding.weight is network.head.weight


def test_the_decoder_sees_no_later_token() -> None:
    network = _tiny().eval()
    source, target = torch.randint(3, 20, (2, 6)), torch.randint(3, 20, (2, 5))
    changed = target.clone()
    changed[:, 3:] = 7
    torch.testing.assert_close(network(source, target)[:, :3], network(source, changed)[:, :3])


def test_padding_changes_nothing() -> None:
    network = _tiny().eval()
    source, target = torch.randint(3, 20, (2, 6)), torch.randint(3, 20, (2, 5))
    padded = F.pad(source, (0, 4), value=_PAD)
    torch.testing.assert_close(network(padded, target), network(source, target), atol=1e-5, rtol=1e-4)


def test_attention_equals_the_formula() -> None:
    torch.manual_seed(0)
    attention = Attention(8, 2)
    x, memory = torch.randn(3, 4, 8), torch.randn(3, 5, 8)
    query, key, value = attention.query(x), attention.key(memory), attention.value(memory)
    heads = []
    for part in (slice(0, 4), slice(4, 8)):
        weights = (query[..., part] @ key[..., part].transpose(1, 2) / 4**0.5).softmax(-1)
        heads.append(weights @ value[..., part])
    torch.testing.assert_close(attention(x, memory), attention.out(torch.cat(heads, -1)))


def test_positions() -> None:
    table = positions(50, 8, torch.device("cpu"))
    assert table.shape == (50, 8)
    assert table[0].tolist() == [0] * 4 + [1] * 4
    torch.testing.assert_close(table[7, 0], torch.tensor(7.0).sin())
    torch.testing.assert_close(table[7, 3], torch.tensor(7e-4).sin())


def test_greedy_takes_the_most_likely_token() -> None:
    network = _tiny().eval()
    source = torch.randint(3, 20, (3, 6))
    tokens = network.greedy(source, limit=8)
    for row, sentence in enumerate(tokens.tolist()):
        prefix = [_BOS]
        for token in sentence:
            if _EOS in prefix:
                assert token == _PAD
                continue
            assert token == int(network(source[row : row + 1], torch.tensor([prefix]))[0, -1].argmax())
            prefix.append(token)


def test_greedy_stops_when_all_sentences_ended() -> None:
    network = _tiny(tied=False).eval()
    with torch.no_grad():
        network.head.weight.zero_()  # every logit is 0, and the first of the largest is the padding
    assert network.greedy(torch.randint(3, 20, (2, 3))).shape == (2, 16)
    network.eos = _PAD
    assert network.greedy(torch.randint(3, 20, (2, 3))).shape == (2, 1)


def test_learns_to_copy() -> None:
    network = _tiny(dropout=0.0)
    optimizer = torch.optim.Adam(network.parameters(), 5e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(120):
        words = torch.randint(3, 8, (32, 3), generator=generator)
        target = F.pad(F.pad(words, (1, 0), value=_BOS), (0, 1), value=_EOS)
        logits = network(target[:, 1:], target[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    words = F.pad(torch.randint(3, 8, (50, 3), generator=generator), (0, 1), value=_EOS)
    copied = network.eval().greedy(words, limit=4)
    assert (copied == words[:, : copied.shape[1]]).float().mean() > 0.9


def test_compiles_to_one_graph() -> None:
    network = _tiny().eval()
    source, target = torch.randint(3, 20, (2, 6)), torch.randint(3, 20, (2, 5))
    compiled = torch.compile(network, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(source, target), network(source, target))


def test_wrong_sizes() -> None:
    with pytest.raises(ConfigError, match="multiple of the heads"):
        build("transformer", units=10, heads=4)
