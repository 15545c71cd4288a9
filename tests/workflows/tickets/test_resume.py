"""A search that is stopped at any moment and begun again ends where an undisturbed one does, bit for bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paretorch.errors import ArtefactError
from paretorch.workflows.tickets import CS, IMP, IMPC, ISS, Search, SequentialCS, Supermask, run_search
from paretorch.workflows.tickets import loop as loop_module
from paretorch.workflows.tickets import storage as storage_module
from tests.workflows.tickets.points import RECIPE, Points, bench, snapshot

SEARCHES = [
    Search(CS(final_temperature=50.0), 2, store=0.5),
    Search(CS(init=-0.02), 2, rewind=True),
    Search(SequentialCS(), 2, store=1.25),
    Search(IMP(), 3, store=0.5),
    Search(IMPC(), 2),
    Search(ISS(lr=5.0), 2, rewind=True),
    Search(Supermask(), 2),
]
NAMES = [f"{search.name}{'-rewound' * search.rewinds}" for search in SEARCHES]


def undisturbed(search: Search, folder: Path) -> tuple[dict[str, object], int]:
    """What is left at the end, and how many steps it took."""
    own = bench(checkpoint_steps=1)
    run_search(search, own, folder)
    return snapshot(folder), own._task.taken  # type: ignore[attr-defined]


@pytest.mark.parametrize("search", SEARCHES, ids=NAMES)
def test_a_stop_at_any_step_changes_nothing(search: Search, tmp_path: Path) -> None:
    expected, steps = undisturbed(search, tmp_path / "whole")
    assert steps == search.trainings() * RECIPE.epochs * Points.steps
    folder = tmp_path / "stopped"
    for fail_at in (0, 1, 4, 7, 11):  # every attempt gets that much further
        with pytest.raises(KeyboardInterrupt):
            run_search(search, bench(fail_at, checkpoint_steps=1), folder)
    run_search(search, bench(checkpoint_steps=1), folder)
    assert snapshot(folder) == expected


@pytest.mark.parametrize(
    "search",
    [
        SEARCHES[0],
        pytest.param(SEARCHES[5], marks=pytest.mark.faults),
        pytest.param(SEARCHES[3], marks=pytest.mark.faults),
        pytest.param(SEARCHES[6], marks=pytest.mark.faults),
    ],
    ids=lambda one: one.name,
)
def test_a_stop_before_or_after_any_file_changes_nothing(
    search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = undisturbed(search, tmp_path / "whole")
    stops = Stops(monkeypatch)
    count, done = 0, False
    while not done:
        count += 1
        stops.after = count
        folder = tmp_path / f"stopped-{count}"
        try:
            run_search(search, bench(), folder)
            done = True
        except KeyboardInterrupt:
            stops.after = 0
            run_search(search, bench(), folder)
        assert snapshot(folder) == expected
    assert count > 2 * 4 * search.rounds  # at least the end of a round, carry, ticket and rows, before and after


class Stops:
    """Interrupts before and after the files of a search are written: `after` so many moments, 0: never."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.after = 0
        for name in ("save", "write_rows", "save_ticket"):
            monkeypatch.setattr(loop_module, name, self._around(getattr(storage_module, name)))

    def _around(self, write: Callable[..., None]) -> Callable[..., None]:
        def watched(*arguments: Any, **options: Any) -> None:
            self._moment()
            write(*arguments, **options)
            self._moment()

        return watched

    def _moment(self) -> None:
        if self.after:
            self.after -= 1
            if not self.after:
                raise KeyboardInterrupt


def test_a_finished_search_is_not_trained_again(tmp_path: Path) -> None:
    search = SEARCHES[0]
    rows = run_search(search, bench(), tmp_path)
    assert run_search(search, bench(fail_at=0), tmp_path) == rows


def test_more_is_told_round_by_round(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    assert run_search(SEARCHES[1], bench(), tmp_path, told.append) == told
    assert [row["search_epochs"] for row in told] == [3, 6]
    assert [row["epochs"] for row in told] == [6, 12]


def test_a_rewound_round_of_imp_is_the_retraining_before_it(tmp_path: Path) -> None:
    search = SEARCHES[NAMES.index("imp-rate0.2-seed0-rewound")]
    rows = run_search(search, bench(), tmp_path)
    assert [row["epochs"] for row in rows] == [6, 9, 12]
    assert [row["found_accuracy"] for row in rows[1:]] == [row["accuracy"] for row in rows[:-1]]


def test_large_files_go_when_a_round_is_done(tmp_path: Path) -> None:
    run_search(SEARCHES[0], bench(), tmp_path)
    assert not list(tmp_path.rglob("checkpoint.pt"))
    assert not list(tmp_path.rglob("end.pt"))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_search(SEARCHES[1], bench(fail_at=30), tmp_path)
    (tmp_path / "carry.pt").write_bytes(b"nonsense")
    with pytest.raises(ArtefactError, match=r"carry\.pt is missing or damaged"):
        run_search(SEARCHES[1], bench(), tmp_path)
