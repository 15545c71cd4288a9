"""Ranks that are killed now and then; the fault suite kills more of them."""

from pathlib import Path

import pytest

from tests.faults.ranks import RankKiller


@pytest.mark.faults
@pytest.mark.timeout(1500)
def test_killed_ranks_lose_the_last_interval_and_nothing_else(tmp_path: Path) -> None:
    killer = RankKiller(1, tmp_path)
    while killer.kills.total() < 4 or len(killer.lives) < 3:
        killer.live(2)
