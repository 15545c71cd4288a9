"""Two real gloo ranks, half the batch each, follow one process with the whole batch, and decide alike."""

import pytest

from tests.contract.ranks import ranks_follow_one

CASES = [
    *(("ddp", rival, "linear") for rival in ("mp", "gmp", "st3", "dnw", "str", "l0", "slim", "ss")),
    *(("fsdp", rival, "conv2d") for rival in ("mp-layer", "gmp-block", "st3", "str-target", "l0-target", "slim", "ss")),
]


def test_ranks_follow_one_process(tmp_path_factory: pytest.TempPathFactory) -> None:
    ranks_follow_one("tests.methods.sparsity_rivals.cases", CASES, tmp_path_factory.mktemp("ranks"))
