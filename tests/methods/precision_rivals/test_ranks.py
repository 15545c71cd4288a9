"""Two real gloo ranks, half the batch each, follow one process with the whole batch, and decide alike."""

import pytest

from tests.contract.cases import rivals
from tests.contract.ranks import ranks_follow_one

CASES = [
    *(("ddp", rival, "linear") for rival in rivals("precision")),
    *(("fsdp", rival, "conv2d") for rival in [*rivals("precision"), "pact-channel"]),
]


def test_ranks_follow_one_process(tmp_path_factory: pytest.TempPathFactory) -> None:
    ranks_follow_one("tests.methods.precision_rivals.cases", CASES, tmp_path_factory.mktemp("ranks"), on_edges=True)
