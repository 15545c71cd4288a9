"""The rounds of one search (Algorithms 2 to 4), so that they can be killed at any moment and resumed.

    round r = 1 … R:
        θ, s: as the network begins (r = 1), or from the end of the round before; θ ← θ̂ when rewinding
        train; in round 1 store θ̂ at step k; at the last step keep θ and s, before they are rounded
        the ticket is (θ̂, m); retrain it with m fixed; one more row

On disk, in this order: the trainer's own checkpoints within a training; `end.pt` of the round's search before the
trainer rounds the decisions; `carry.pt`, the end of the round, once its training is over; the row of the round, once
its ticket is retrained. What is there is never done again, and what is not there is done again from the file before it.
"""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from paretorch.core.compress import compress
from paretorch.core.plan import Plan
from paretorch.errors import ArtefactError, PareError
from paretorch.support import checked_files
from paretorch.training.files import write_atomically
from paretorch.training.runtime import Runtime
from paretorch.training.tasks import derive_seed
from paretorch.workflows.queue import owner_of
from paretorch.workflows.tickets.bench import Bench
from paretorch.workflows.tickets.methods import hold
from paretorch.workflows.tickets.search import Search
from paretorch.workflows.tickets.state import (
    Masks,
    RoundEnd,
    Weights,
    read_decisions,
    read_masks,
    read_weights,
    sparsity,
    write_decisions,
)
from paretorch.workflows.tickets.storage import (
    STORED,
    Row,
    Storage,
    Unit,
    load,
    read_rows,
    round_folder,
    save,
    save_ticket,
    write_rows,
)

Show = Callable[[Row], None]
Log = Callable[[str], None]
_PAUSE = 1.0  # seconds between looks at the units of other workers

_FOUND = {"accuracy": int | float, "test_accuracy": int | float | None}


def run_search(search: Search, bench: Bench, folder: Path, show: Show = lambda row: None) -> list[Row]:
    """Run the rounds that are not done yet; `show` is called with the row of each; returns all rows."""
    search.require_fit(bench.recipe.epochs)
    rounds = _Rounds(search, bench, folder)
    rows = read_rows(folder)
    for row in rows:  # a kill may have come between a row and the tidying after it
        rounds.tidy(row["round"])
    for number in range(len(rows) + 1, search.rounds + 1):
        rows.append(rounds.run(number, rows[-1] if rows else None))
        write_rows(folder, rows)
        rounds.tidy(number)
        show(rows[-1])
    return rows


class _Rounds:
    def __init__(self, search: Search, bench: Bench, folder: Path) -> None:
        self.search, self.method, self.bench, self.folder = search, search.method, bench, folder
        self._carry, self._stored, self._retrained = folder / "carry.pt", folder / STORED, folder / "retrained.pt"

    def run(self, number: int, before: Row | None) -> Row:
        """One round: search and retrain."""
        reused = self.search.reuses and before is not None
        end, found = self._finish_search(number, before if reused else None)
        ticket = self.method.ticket(end)
        save_ticket(self.folder, number, ticket)
        kept = found if self.method.frozen else self._retrain(number, ticket)
        epochs = self.bench.recipe.epochs
        spent = (not reused) + (not self.method.frozen)
        return {
            "search": self.search.name,
            "method": self.method.name,
            "seed": self.search.seed,
            "round": number,
            "sparsity": sparsity(ticket),
            **kept,
            "found_accuracy": found["accuracy"],
            "search_epochs": number * epochs,
            "epochs": (0 if before is None else before["epochs"]) + spent * epochs,
            "layers": {name: 1.0 - sparsity({name: mask}) for name, mask in ticket.items()},
        }

    def tidy(self, number: int) -> None:
        """Remove the large files of a round that is done."""
        for part in ("search", "ticket"):
            for name in ("checkpoint.pt", "end.pt"):
                checked_files.remove(round_folder(self.folder, number) / part / name)

    def _finish_search(self, number: int, alike: Row | None) -> tuple[RoundEnd, Row]:
        """The end of this round, and how accurate the network was; `alike`: the training that this one would repeat."""
        carry: dict[str, Any] = {"round": 0}
        if self._carry.exists():
            carry = load(self._carry, {"round": int, "end": vars(self._like), "found": _FOUND})
        if carry["round"] not in (number - 1, number):
            raise ArtefactError(
                f"carry.pt and rounds.jsonl in {self.folder} are not of the same round; "
                "remove that folder and give the command that began the search again"
            )
        if carry["round"] < number:
            before = RoundEnd(**carry["end"]) if number > 1 else None
            if alike is not None and before is not None:
                decisions, masks = self.method.restart(before), self.method.ticket(before)
                end = RoundEnd(load(self._retrained, self._like.weights), decisions, masks)
                found = {name: alike[name] for name in ("accuracy", "test_accuracy")}
            else:
                end, found = self._search(number, before)
            carry = {"round": number, "end": vars(end), "found": found}
            # A round that reuses a retraining cannot be done again once its own retraining has replaced that one.
            save(self._carry, carry, generations=1 if self.search.reuses else 2)
        return RoundEnd(**carry["end"]), carry["found"]

    def _search(self, number: int, before: RoundEnd | None) -> tuple[RoundEnd, Row]:
        weights = None if before is None else self._theta_hat() if self.search.rewinds else before.weights
        model = self.bench.fresh(weights)
        stored_at = self.bench.step_of(self.search.store)
        if before is None and stored_at == 0:
            save(self._stored, read_weights(model))
        plan = self._attach(model, number, before)
        folder = round_folder(self.folder, number) / "search"

        def after_step(step: int) -> None:
            if before is None and step == stored_at:
                save(self._stored, read_weights(model))
            if step == self.bench.steps:
                save(folder / "end.pt", {"weights": read_weights(model), "decisions": read_decisions(model)})

        last = self.bench.train(model, plan, folder, frozen=self.method.frozen, after_step=after_step)
        found = {"accuracy": last["test_accuracy"], "test_accuracy": self.bench.test(model)}
        like = {"weights": self._like.weights, "decisions": self._like.decisions}
        return RoundEnd(**load(folder / "end.pt", like), masks=read_masks(model)), found

    def _theta_hat(self) -> Weights:
        weights: Weights = load(self._stored, self._like.weights)
        return weights

    @cached_property
    def _like(self) -> RoundEnd:
        """The end of a round by its names and shapes: what is read should be of this network and this method."""
        model = self.bench.fresh()
        compress(model, self.method.relaxation(self.bench.exclude), steps=self.bench.steps)
        weights, decisions = read_weights(model), read_decisions(model)
        return RoundEnd(weights, decisions, {name: weights[name] for name in decisions})

    def _attach(self, model: nn.Module, number: int, before: RoundEnd | None) -> Plan:
        seed = derive_seed(self.search.seed, number)  # a round draws other masks than the one before
        plan = compress(model, self.method.relaxation(self.bench.exclude), steps=self.bench.steps, seed=seed)
        if before is not None:
            write_decisions(model, self.method.restart(before))
        if self.method.fixed:
            plan.harden()
        return plan

    def _retrain(self, number: int, ticket: Masks) -> Row:
        """Train the ticket from θ̂, its mask fixed."""
        model = self.bench.fresh(self._theta_hat())
        plan = hold(model, ticket, self.bench.exclude, self.bench.steps)
        last = self.bench.train(model, plan, round_folder(self.folder, number) / "ticket")
        if self.search.reuses:
            save(self._retrained, read_weights(model))
        # With a validation split, what the task calls its test set is that split.
        return {"accuracy": last["test_accuracy"], "test_accuracy": self.bench.test(model)}


def work(storage: Storage, runtime: Runtime, log: Log = print, show: Show | None = None) -> None:
    """Do what is left in the storage, together with any other workers; returns when all of it is done.

    log: called with a line when something happens. show: called with the row of each ticket, and of a dense training.
    A search that fails does not stop the others; what failed is raised at the end.
    """
    failed: dict[str, PareError] = {}
    waiting = False
    while left := [unit for unit in storage.units() if unit.name not in failed and not unit.is_done()]:
        took = False
        for unit in left:
            with storage.claim(unit) as claim:
                if claim is not None and not unit.is_done():
                    took = True
                    if claim.taken_from:
                        log(f"{unit.name}: its worker fell silent ({claim.taken_from}); continuing its work")
                    try:
                        do_unit(unit, storage, runtime, show or (lambda row: None))
                    except PareError as error:
                        failed[unit.name] = error
                        log(f"{unit.name}: failed: {error}")
        if not took:
            if not waiting:
                owners = ", ".join(f"{unit.name} ({owner_of(unit.folder)})" for unit in left)
                log(f"{owners}: in the hands of other workers; waiting for them")
            waiting = True
            time.sleep(_PAUSE)
    if failed:
        if len(failed) == 1:
            raise next(iter(failed.values()))
        raise PareError(f"{len(failed)} searches failed ({', '.join(failed)}); the same command continues with them")


def do_unit(unit: Unit, storage: Storage, runtime: Runtime, show: Show = lambda row: None) -> None:
    """Do what is left of one unit, which this process has claimed; `show` is called with the row of each ticket."""
    bench = Bench.of(replace(storage.recipe, seed=unit.seed), runtime)
    if unit.search is not None:
        run_search(unit.search, bench, unit.folder, show)
        return
    model = bench.fresh()
    last = bench.train(model, None, unit.folder)
    row = {
        "search": unit.name,
        "method": "dense",
        "seed": unit.seed,
        "round": 0,
        "sparsity": 0.0,
        "accuracy": last["test_accuracy"],
        "test_accuracy": bench.test(model),
        "epochs": storage.recipe.epochs,
    }
    write_atomically(unit.folder / "dense.json", (json.dumps(row) + "\n").encode())
    show(row)
