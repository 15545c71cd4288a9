"""Two real gloo ranks, half the batch each, follow one process with the whole batch, and decide alike."""

import json
import subprocess
import sys

import pytest
import torch

from paretorch import compress
from tests.contract.cases import MODELS, STEPS, build
from tests.contract.loop import optimizer_of, train
from tests.precision_rivals.cases import RIVALS

CASES = [
    *(("ddp", rival, "linear") for rival in ("uniform", "dorefa", "pact", "lsq", "lqnets", "dsq", "slb", "bsq")),
    *(("fsdp", rival, "conv2d") for rival in ("uniform", "pact-channel", "lsq", "lqnets", "dsq", "slb", "bsq")),
]


def test_ranks_follow_one_process(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("ranks")
    worker = [sys.executable, "-m", "tests.precision_rivals.rank", str(folder), json.dumps(CASES)]
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
            # A sum in another order may move a weight over the edge between two values: few do.
            for name, expected in (("soft", soft), ("hard", hard)):
                assert ((ranks[0][name][key] - expected[key]).abs() > 1e-3).float().mean() <= 0.02, f"{case} {name}"
