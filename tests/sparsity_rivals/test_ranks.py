"""Two real gloo ranks, half the batch each, follow one process with the whole batch, and decide alike."""

import json
import subprocess
import sys

import pytest
import torch

from paretorch import compress
from tests.contract.cases import MODELS, STEPS, build
from tests.contract.loop import optimizer_of, train
from tests.sparsity_rivals.cases import RIVALS

CASES = [
    *(("ddp", rival, "linear") for rival in ("mp", "gmp", "st3", "dnw", "str", "l0", "slim", "ss")),
    *(("fsdp", rival, "conv2d") for rival in ("mp-layer", "gmp-block", "st3", "str-target", "l0-target", "slim", "ss")),
]


def test_ranks_follow_one_process(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("ranks")
    worker = [sys.executable, "-m", "tests.sparsity_rivals.rank", str(folder), json.dumps(CASES)]
    processes = [subprocess.Popen([*worker, str(rank)], stderr=subprocess.PIPE, text=True) for rank in range(2)]
    errors = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    for kind, rival, model in CASES:
        network = build(model)
        plan = compress(network, *RIVALS[rival](), steps=STEPS)
        optimizer, x = optimizer_of(plan), MODELS[model].batch(8)
        train(network, plan, optimizer, x, 5)
        soft = plan.dense_state_dict()
        plan.harden(optimizer)
        train(network, plan, optimizer, x, 2)
        hard = plan.dense_state_dict()
        ranks = [torch.load(folder / f"{kind}-{rival}-{model}-{rank}.pt", weights_only=True) for rank in range(2)]
        for key in soft:
            case = f"{kind} {rival} {model} {key}"
            assert torch.equal(ranks[0]["hard"][key], ranks[1]["hard"][key]), f"{case}: ranks decide apart"
            torch.testing.assert_close(
                ranks[0]["soft"][key], soft[key], rtol=1e-4, atol=1e-5, msg=lambda m, c=case: f"{c}: {m}"
            )
            assert ((ranks[0]["hard"][key] - hard[key]).abs() > 1e-3).float().mean() <= 0.02, case
