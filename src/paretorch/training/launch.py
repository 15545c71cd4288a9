"""Training, by this process alone or by the ranks that torchrun has started."""

import contextlib
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from paretorch.errors import ConfigError, PareWarning
from paretorch.support.sharded import whole
from paretorch.training import run
from paretorch.training.batch_norms import over_all_ranks
from paretorch.training.files import alone_in
from paretorch.training.finish import finish, read_result
from paretorch.training.folder import RunFolder, check_folder
from paretorch.training.global_state import fast_on_gpu, own_random
from paretorch.training.optimizers import clip_gradients
from paretorch.training.ranked import FollowerFolder, RankTrainer, require_parts
from paretorch.training.ranks import Ranks, device_of_rank, joined, launched
from paretorch.training.recipe import Recipe
from paretorch.training.recipe_values import changed
from paretorch.training.runtime import Runtime
from paretorch.training.tasks.choose import choose
from paretorch.training.tracking import require_trackers


def train(recipe: Recipe, out: Path, runtime: Runtime | None = None, *, resume: bool = False) -> dict[str, Any]:
    """Run a recipe to its end in the folder `out`; returns the result: metrics, bytes, sparsity, bits.

    Under torchrun all ranks call this, and all return the result. The batch of the recipe is that of all ranks together, so the
    result does not depend on their number but for the order of sums.
    """
    runtime = runtime or Runtime()
    count = launched()
    if runtime.shard and count == 1 and "RANK" not in os.environ:
        raise ConfigError("--shard shares a network out among ranks: start them with torchrun --nproc-per-node N")
    if count == 1 and runtime.accumulate == 1:
        return run.train(recipe, out, runtime, resume=resume)
    device = run.choose_device(device_of_rank(runtime.device))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with joined(device) as ranks:
        first = ranks.is_first
        progress, track = (runtime.progress, runtime.track) if first else ("quiet", ())
        own = replace(runtime, device=str(device), compile=False, graph=False, progress=progress, track=track)
        return _train(recipe, out, own, ranks, resume)


def _train(recipe: Recipe, out: Path, runtime: Runtime, ranks: Ranks, resume: bool) -> dict[str, Any]:
    def begin() -> dict[str, Any] | None:
        check_folder(out, recipe, resume=resume)
        require_trackers(runtime.track)
        return read_result(out) if resume else None

    if (result := ranks.from_first(begin)) is not None:
        return result
    setup = ranks.together(lambda: run.prepare(recipe, runtime))
    ranks.together(lambda: require_parts(recipe, setup.task, runtime, ranks))
    with contextlib.ExitStack() as inside:
        inside.enter_context(warnings.catch_warnings())
        if not ranks.is_first:  # the first one warns
            warnings.simplefilter("ignore", PareWarning)
        inside.enter_context(own_random(setup.device))
        inside.enter_context(fast_on_gpu(setup.device))

        def open_folder() -> RunFolder | None:
            if not ranks.is_first:
                return None
            inside.enter_context(alone_in(out))
            return RunFolder(out, recipe, resume=resume, device=setup.device)

        opened = ranks.together(open_folder)
        rows = ranks.each(None if opened is None else opened.rows)[0]
        folder = FollowerFolder(out, rows or b"") if opened is None else opened
        with over_all_ranks(setup.model, ranks):
            trainer = RankTrainer(
                setup.model,
                setup.task,
                recipe,
                folder,
                ranks=ranks,
                shard=runtime.shard,
                resume=resume,
                plan=setup.plan,
                runtime=runtime,
                device=setup.device,
            )
            if recipe.optimizer.clip_norm is not None:
                clip_gradients(trainer.optimizer, recipe.optimizer.clip_norm)
            last = trainer.run(resume=resume)
        state = {
            name: whole(value).cpu() if isinstance(value, torch.Tensor) else value
            for name, value in setup.model.state_dict().items()
        }
        return ranks.from_first(lambda: _finish(recipe, runtime, state, folder, last))


def _finish(
    recipe: Recipe, runtime: Runtime, state: dict[str, Any], folder: RunFolder, last: dict[str, Any]
) -> dict[str, Any]:
    """What one process does at the end, with a network of its own that nothing is left of the ranks in."""
    setup = run.prepare(recipe, runtime)
    setup.model.load_state_dict(state)
    test = None
    if recipe.data.validation:
        test = choose(changed(recipe, {"data.validation": 0}), runtime, setup.device)[0]
    return finish(setup.model, setup.task, setup.plan, folder, last, test, recipe.compression.norms)
