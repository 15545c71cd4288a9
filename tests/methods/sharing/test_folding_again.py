"""A network that was folded before, or loaded from the file of a run, folds further where its layers are mixtures still."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from paretorch import SMOL, ContinuousSparsification, SoftSharing, compress, fold, load, save
from paretorch.core.method import Method
from paretorch.errors import ArtefactError, ConfigError, PareWarning
from paretorch.methods.sharing.folding import levels
from paretorch.zoo import build as build_network
from tests.methods.sharing.test_folding import mixes


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 6, num_layers=4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        last: Tensor = self.lstm(x[:, None].repeat(1, 3, 1))[0][:, -1]
        return last


def _linear(count: int = 4) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(6, 6) for _ in range(count)))


def _tied() -> nn.Sequential:
    network = _linear(5)
    network[3].weight = network[0].weight
    return network


KINDS: dict[str, Callable[[], nn.Module]] = {"linear": _linear, "tied": _tied, "recurrent": _Recurrent}


def _x() -> Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(7))


def _shared(network: nn.Module, *methods: Method) -> nn.Module:
    """With two templates a group, and coefficients of which some are nearly multiples of each other."""
    compress(network, *(methods or (SoftSharing(templates=2),)), steps=9)
    with torch.no_grad():
        for number, mix in enumerate(mixes(network)):
            mix.s[:2] = torch.tensor([1.0 + 0.1 * number, (-1.0) ** number * 0.4])
    return network.eval()


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_network_folds_as_the_one_it_was_made_from(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = _shared(KINDS[kind]())
    save(fold(network), tmp_path / "whole.pare")
    whole = load(tmp_path / "whole.pare", into=KINDS[kind]()).eval()
    keys = list(whole.state_dict())
    assert levels(whole) == pytest.approx(levels(network), abs=1e-5)
    for count in levels(network):
        expected, found = fold(network, layers=count), fold(whole, layers=count)
        for one, other in zip(expected.paretorch_folding, found.paretorch_folding, strict=True):
            assert (one.layers, one.runs, one.stored) == (other.layers, other.runs, other.stored)
            assert one.errors == pytest.approx(other.errors, abs=1e-5)
        assert list(found.state_dict()) == list(expected.state_dict())
        torch.testing.assert_close(found(_x()), expected(_x()), rtol=1e-4, atol=1e-5)
        save(found, tmp_path / "found.pare")
        assert torch.equal(load(tmp_path / "found.pare", into=KINDS[kind]()).eval()(_x()), found(_x()))
    assert list(whole.state_dict()) == keys, "a copy is folded"


def test_one_group_after_the_other() -> None:
    torch.manual_seed(0)
    network = build_network("swrn-22-1-2", classes=4)
    _shared(network, SoftSharing(**network.sharing))
    x = torch.randn(2, 3, 8, 8)
    first = fold(network, layers=1, only="stages.0.*")
    both = fold(first, layers=1, only="stages.1.*")
    one, two, three = both.paretorch_folding
    assert one.runs == two.runs == (1, 1, 1, 1)
    assert (one.stored, two.stored, three.stored) == (1, 1, 2)
    assert one.exact, "nothing more is lost by what was folded before"
    assert not two.exact
    parameters = [sum(p.numel() for p in net.parameters()) for net in (fold(network), first, both)]
    assert parameters[0] > parameters[1] > parameters[2]
    assert torch.equal(fold(first, layers=4, only="stages.1.*")(x), first(x))
    assert torch.equal(fold(both)(x), both(x))


def test_layers_that_are_stored_themselves_are_not_joined() -> None:
    torch.manual_seed(0)
    whole = fold(_shared(_linear(), SoftSharing(templates=4)))
    assert whole.paretorch_folding[0].stored == 4
    with pytest.warns(PareWarning, match=r"0\.weight and others of its group are stored as they are, .* so they stay"):
        small = fold(whole, threshold=0.9)
    assert torch.equal(small(_x()), whole(_x()))
    assert torch.equal(fold(whole)(_x()), whole(_x()))
    assert levels(whole) == {4: 1.0}
    for words in ({"layers": 3}, {"threshold": 0.0}):
        with pytest.raises(ConfigError, match=r"0\.weight and others of its group .* with its checkpoint\.pt"):
            fold(whole, **words)


def test_without_what_is_around_it() -> None:
    network = fold(_shared(_linear()))
    expected, found = fold(network, layers=1), fold(nn.Sequential(nn.Identity(), network), layers=1)
    assert torch.equal(found(_x()), expected(_x()))
    assert found.paretorch_edits == expected.paretorch_edits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", [ContinuousSparsification(target=0.5), SMOL(target_bits=3.0, init_bits=6.0)])
def test_what_was_pruned_or_quantized_is_what_stays_stored(method: Method, dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(*(nn.Linear(24, 24) for _ in range(4))).to(dtype)
    plan = compress(network, SoftSharing(templates=2), method, steps=2)
    for _ in range(2):
        network(torch.randn(4, 24, dtype=dtype)).float().square().mean().backward()
        plan.step()
    whole = fold(network)
    few = fold(whole, layers=1)
    assert few.paretorch_folding[0].runs == (1, 1, 1, 1)
    assert few.paretorch_folding[0].stored == 2, "their mixture would be neither sparse nor coarse"
    assert save(few, tmp_path / "few.pare").total <= 1.02 * save(whole, tmp_path / "whole.pare").total


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [8, 64, 512])
def test_what_is_neither_is_one_weight(dtype: torch.dtype, width: int) -> None:
    torch.manual_seed(0)
    network = _shared(nn.Sequential(*(nn.Linear(width, width) for _ in range(3))).to(dtype))
    assert fold(fold(network), layers=1).paretorch_folding[0].stored == 1


def test_it_trains_on() -> None:
    small = fold(fold(_shared(_linear())), layers=2).train()
    small(_x()).square().mean().backward()
    assert all(parameter.grad is not None for parameter in small.parameters())


def test_the_levels_of_orthogonal_mixtures_go_on_to_one() -> None:
    network = _shared(_linear(3))
    with torch.no_grad():
        for mix, row in zip(mixes(network), ([1.0, 0.0], [0.0, 1.0], [1.0, 1.0]), strict=True):
            mix.s.copy_(torch.tensor(row))
    whole = fold(network)
    assert levels(whole) == pytest.approx(levels(network), abs=1e-6)
    for count in levels(whole):
        assert max(fold(whole, layers=count).paretorch_folding[0].runs) == count


def test_a_network_that_is_folded_otherwise_takes_no_file(tmp_path: Path) -> None:
    network = _shared(_linear())
    save(fold(network, layers=2), tmp_path / "two.pare")
    other = fold(network)
    before = other(_x())
    with pytest.raises(ArtefactError, match=r"0\.weight is shared already: give the network as it was before"):
        load(tmp_path / "two.pare", into=other)
    assert torch.equal(other(_x()), before)
