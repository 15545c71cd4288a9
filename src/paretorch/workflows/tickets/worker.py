"""A worker: takes what nobody else does, until all of the folder is done."""

import json
import time
from collections.abc import Callable
from dataclasses import replace

from paretorch.errors import PareError
from paretorch.training.files import write_atomically
from paretorch.training.runtime import Runtime
from paretorch.workflows.tickets.bench import Bench
from paretorch.workflows.tickets.files import Row
from paretorch.workflows.tickets.loop import run_search
from paretorch.workflows.tickets.storage import Storage, Unit

_PAUSE = 1.0  # seconds between looks at the units of other workers
Tell = Callable[[str], None]


def work(storage: Storage, runtime: Runtime, tell: Tell = print, show: Callable[[Row], None] | None = None) -> None:
    """Do what is left in the storage, together with any other workers; returns when all of it is done.

    tell: called with a line when something happens. show: called with the row of each ticket, and of a dense training.
    A search that fails does not stop the others; what failed is raised at the end.
    """
    failed: dict[str, PareError] = {}
    waiting = False
    while left := [unit for unit in storage.units() if unit.name not in failed and not unit.is_done()]:
        took = False
        for unit in left:
            with storage.claim(unit) as mine:
                if mine and not unit.is_done():
                    took = True
                    try:
                        _do(unit, storage, runtime, show or (lambda row: None))
                    except PareError as error:
                        failed[unit.name] = error
                        tell(f"{unit.name}: failed: {error}")
        if not took:
            if not waiting:
                tell(f"{', '.join(unit.name for unit in left)}: in the hands of other workers; waiting for them.")
            waiting = True
            time.sleep(_PAUSE)
    if failed:
        if len(failed) == 1:
            raise next(iter(failed.values()))
        raise PareError(f"{len(failed)} searches failed ({', '.join(failed)}); the same command continues with them.")


def _do(unit: Unit, storage: Storage, runtime: Runtime, show: Callable[[Row], None]) -> None:
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
