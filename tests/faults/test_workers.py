"""Workers of one search that are killed: every setting once, on every kind of storage."""

import pytest

from tests.faults.postgres import programs
from tests.faults.workers import KINDS, run


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind == "journal" else pytest.mark.faults) for kind in KINDS]
)
def test_every_setting_is_trained_once(kind: str) -> None:
    if kind == "postgresql":
        pytest.importorskip("psycopg")
        if programs() is None:
            pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    assert run(kind, workers=4, kills=2, seed=11, patience=10.0)["begun"] >= 24


@pytest.mark.faults
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", KINDS)
def test_ten_workers_in_five_runs(kind: str) -> None:
    if kind == "postgresql" and programs() is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    for seed in range(5):
        run(kind, workers=10, kills=3, seed=seed)
