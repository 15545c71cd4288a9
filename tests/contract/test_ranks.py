"""Promise 2 on two ranks: methods of all kinds, under DDP and FSDP2, follow one process with the whole batch."""

from pathlib import Path

import pytest

from tests.contract.cases import METHODS, MODELS, rivals
from tests.contract.ranks import Case, ranks_follow_one
from tests.contract.rivals import QUANTIZERS

_OWN, _RIVALS, _SHARING = "tests.contract.cases", "tests.contract.rivals", "tests.methods.sharing.cases"
_NOT_SHARDED = ("lstm", "tied")


def _both(table: str, cases: list[tuple[str, str]]) -> list[Case]:
    ddp = [(table, "ddp", *case) for case in cases]
    return ddp + [(table, "fsdp", *case) for case in cases if case[1] not in _NOT_SHARDED]


OWN = [
    ("both", "conv2d"),
    ("precision-channel", "attention"),
    ("sparsity-block", "linear"),
    ("precision-network", "linear"),
    ("both-mixed", "tied"),
    ("precision-layer", "lstm"),
    ("coupled", "conv2d"),
    ("coupled-both", "linear"),
]
SHARING = [
    ("all", "conv"),
    ("fewer", "linear"),
    ("one-hot", "linear"),
    ("everything", "conv"),
    ("hard", "attention"),
    ("fewer", "tied"),
    ("fewer", "lstm"),
]
# In `make contract` every rival under both; in `make test` every rival under one of the two, by turns.
_EVERY_RIVAL = [*rivals("sparsity"), *rivals("precision")]
_BY_TURNS = [("ddp", rival, "linear") for rival in [*_EVERY_RIVAL, "str-decay", "l0-penalty", "stochastic-free"]]
_BY_TURNS += [
    ("fsdp", rival, "conv2d") for rival in [*_EVERY_RIVAL, "mp-layer", "gmp-block", "str-channel", "pact-channel"]
]


def _rivals(part: int) -> list[Case]:
    return [(_RIVALS, *case) for case in _BY_TURNS[part::2]]


@pytest.mark.filterwarnings("ignore:harden at step")
def test_ranks_follow_one_process(tmp_path: Path) -> None:
    """All of them in one pair of processes, whose start takes longer than they do."""
    cases = _both(_OWN, OWN) + _rivals(0) + _both(_SHARING, SHARING)
    assert {method for table, _, method, _ in cases if table == _RIVALS} >= set(_EVERY_RIVAL)
    ranks_follow_one(cases, tmp_path, on_edges=QUANTIZERS)


@pytest.mark.contract
@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_on_every_kind_of_layer(method: str, tmp_path: Path) -> None:
    ranks_follow_one(_both(_OWN, [(method, model) for model in MODELS]), tmp_path)


@pytest.mark.contract
def test_rivals_the_other_way(tmp_path: Path) -> None:
    ranks_follow_one(_rivals(1), tmp_path, on_edges=QUANTIZERS)
