"""Two real gloo ranks, half the batch each, against one process with the whole batch."""

import importlib
import json
from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from torch import Tensor

from tests.contract.loop import optimizer_of, train
from tests.meeting import both_ranks

Case = tuple[str, str, str, str]  # table, "ddp" or "fsdp", method, model


def ranks_follow_one(cases: Sequence[Case], folder: Path, *, on_edges: Collection[str] = ()) -> None:
    """The ranks decide alike, bit for bit, and follow the one process.

    All cases are run by the same two processes, whose start takes longer than they do.

    Args:
        cases: what the ranks run, see `tests.contract.rank`.
        folder: for their files.
        on_edges: methods whose weights a sum in another order may move over the edge between two values while searching, too; few do.
    """
    both_ranks("tests.contract.rank", folder, json.dumps(cases))
    for number, (table, kind, method, model) in enumerate(cases):
        network, plan, x = importlib.import_module(table).start(method, model)
        optimizer = optimizer_of(plan)
        train(network, plan, optimizer, x, 5)
        soft = plan.dense_state_dict()
        plan.harden(optimizer)
        train(network, plan, optimizer, x, 2)
        hard = plan.dense_state_dict()
        ranks = [torch.load(folder / f"{number}-{rank}.pt", weights_only=True) for rank in range(2)]
        for key in soft:
            case = f"{kind} {method} {model} {key}"
            assert torch.equal(ranks[0]["hard"][key], ranks[1]["hard"][key]), f"{case}: ranks decide apart"
            if method in on_edges:
                assert _apart(ranks[0]["soft"][key], soft[key]) <= 0.02, case
            else:
                torch.testing.assert_close(
                    ranks[0]["soft"][key], soft[key], rtol=1e-4, atol=1e-5, msg=lambda m, c=case: f"{c}: {m}"
                )
            assert _apart(ranks[0]["hard"][key], hard[key]) <= 0.02, case


def _apart(one: Tensor, other: Tensor) -> Tensor:
    return ((one - other).abs() > 1e-3).float().mean()
