"""The table of addresses: sent again if a gradient moved, and kept by a graph that was captured with it."""

from __future__ import annotations

import pytest
import torch

from paretorch.errors import ConfigError
from paretorch.support import addresses

FIXED = [[16, 32], [48, 64], [80, 96], [5, 7], [1, 2], [3, 4]]


@pytest.fixture
def capture(monkeypatch):
    """Pretend that a graph is being captured (or not)."""
    state = {"on": False}
    monkeypatch.setattr(addresses, "_is_capturing", lambda device: state["on"])
    return lambda on: state.update(on=on)


def gradients(table) -> list[int]:
    return table[1].tolist()


def test_rows_and_alignment() -> None:
    made = addresses.AddressTable(FIXED, torch.device("cpu"), addressed=3)
    table, aligned = made.with_gradients([160, 0])
    assert table.tolist() == [FIXED[0], [160, 0], *FIXED[1:]]
    assert aligned
    assert not made.with_gradients([161, 0])[1]
    assert not made.with_gradients([161, 0])[1], "remembered"
    assert not addresses.AddressTable([[17, 32], *FIXED[1:]], torch.device("cpu"), addressed=3).with_gradients(
        [160, 0]
    )[1]


def test_a_graph_keeps_the_table_it_was_captured_with(capture) -> None:
    made = addresses.AddressTable(FIXED, torch.device("cpu"), addressed=3)
    eager, _ = made.with_gradients([160, 176])
    capture(True)
    captured, _ = made.with_gradients([160, 176])
    assert captured is eager, "nothing to copy at a replay"
    capture(False)
    later, _ = made.with_gradients([320, 336])
    assert gradients(later) == [320, 336]
    assert gradients(captured) == [160, 176]


def test_a_graph_with_other_gradients_has_a_table_of_its_own(capture) -> None:
    made = addresses.AddressTable(FIXED, torch.device("cpu"), addressed=3)
    eager, _ = made.with_gradients([160, 176])
    capture(True)
    first, _ = made.with_gradients([320, 336])
    assert gradients(first) == [320, 336]
    assert gradients(made.with_gradients([320, 336])[0]) == [320, 336], "captured again"
    with pytest.raises(ConfigError, match="between two captures"):
        made.with_gradients([480, 496])
    capture(False)
    assert gradients(made.with_gradients([160, 176])[0]) == [160, 176]
    capture(True)
    second, _ = made.with_gradients([480, 496])
    assert [gradients(t) for t in (eager, first, second)] == [[160, 176], [320, 336], [480, 496]]
