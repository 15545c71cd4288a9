"""The networks of chapter 3: what shares, and how many numbers they have."""

import pytest
import torch
from torch import nn

from paretorch import compress
from paretorch.deploy import load, save
from paretorch.errors import ConfigError
from paretorch.methods.sharing import SoftSharing, fold, layer_similarity
from paretorch.zoo import build


def shared(name: str, **options: object) -> nn.Module:
    network = build(name, **options)
    compress(network, SoftSharing(**network.sharing), steps=1)
    return network


def millions(network: nn.Module) -> int:
    return round(sum(p.numel() for p in network.parameters()) / 1e6)


@pytest.mark.parametrize(("name", "expected"), [("swrn-28-10-1", 12), ("swrn-28-10-2", 17), ("swrn-28-10-6", 36)])
def test_the_sizes_of_the_thesis(name: str, expected: int) -> None:
    network = shared(name)
    assert millions(network) == expected
    assert [len(one.layers) for one in layer_similarity(network)] == [6, 6, 6]


def test_without_k_nothing_is_saved() -> None:
    assert build("swrn-28-2").sharing["templates"] is None
    wide = sum(p.numel() for p in build("wrn-28-2").parameters())
    own = sum(p.numel() for p in shared("swrn-28-2").parameters())
    assert own == wide + 3 * 6 * 6  # the coefficients


def test_first_blocks_stems_and_heads_keep_their_weights() -> None:
    layers = [name for one in layer_similarity(shared("swrn-16-1-1", dropout=0.3)) for name in one.layers]
    assert layers == [f"stages.{stage}.1.conv{i}.weight" for stage in range(3) for i in (1, 2)]
    assert build("swrn-16-1-1", dropout=0.3).stages[0][1].dropout.p == 0.3


def test_imagenet_has_twelve_groups() -> None:
    with torch.device("meta"):
        network = build("swrn-50-2")
    from paretorch.core.attach.sites import choose, find_sites
    from paretorch.methods.sharing.banks import share_groups

    groups = share_groups(choose(find_sites(network), None, network.sharing["exclude"]))
    assert len(groups) == 12
    assert sorted(len(group) for group in groups) == sorted([2, 2, 2, 3, 3, 3, 5, 5, 5, 2, 2, 2])
    assert millions(network) == 69


def test_shortest_paths() -> None:
    network = shared("shortest-paths-scnn", layers=4, width=4)
    (similarity,) = layer_similarity(network)
    assert len(similarity.layers) == 4
    assert network(torch.zeros(1, 2, 5, 5)).shape == (1, 5, 5)


def test_a_transformer_of_one_layer_in_a_loop() -> None:
    """As in ALBERT: queries share with queries, and so on."""
    torch.manual_seed(0)
    network = build("transformer", vocabulary=20, units=8, inner=16, heads=2, layers=3).eval()
    roles = SoftSharing(templates=1, by=lambda name, _: name.rpartition(".")[2], exclude=network.leave_out["sharing"])
    compress(network, roles, steps=1)
    parts = [{name.split(".")[-2] for name in one.layers} for one in layer_similarity(network)]
    assert parts == [{"query"}, {"key"}, {"value"}, {"out"}, {"linear1"}, {"linear2"}]
    source, target = torch.randint(4, 20, (2, 5)), torch.randint(4, 20, (2, 6))
    small = fold(network, threshold=0.9)
    torch.testing.assert_close(small(source, target), network(source, target), rtol=1e-4, atol=1e-5)
    assert {folding.stored for folding in small.paretorch_folding} == {1}


def test_a_folded_zoo_network_comes_back_by_name(tmp_path: pytest.TempPathFactory) -> None:
    network = shared("swrn-16-1-1").eval()
    small = fold(network, threshold=0.9)
    x = torch.randn(1, 3, 8, 8)
    torch.testing.assert_close(small(x), network(x), rtol=1e-4, atol=1e-5)
    save(small, tmp_path / "model.pare")
    again = load(tmp_path / "model.pare")
    assert torch.equal(again(x), small(x))
    assert sum(p.numel() for p in again.parameters()) == sum(p.numel() for p in small.parameters())


def test_bad_names() -> None:
    with pytest.raises(ConfigError, match="no layers can share"):
        build("swrn-10-1-1")
    with pytest.raises(ConfigError, match="1 or more templates"):
        build("swrn-16-1-0")
