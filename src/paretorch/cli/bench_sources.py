"""What `pare bench` compares: networks from run folders and artefacts, and dense ones as others would prune them.

Each pruned network is a run of its own in the bench's folder, which is resumed like any other.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from paretorch.cli.finished import Finished, find_finished
from paretorch.errors import ConfigError
from paretorch.training.recipe import Recipe
from paretorch.training.runtime import Runtime
from paretorch.training.tasks.choose_disk import has_own_task
from paretorch.training.tasks.images import IMAGES

_OURS = {"cs": "CS", "smol": "SMOL", "smol-printed": "SMOL", "given": "SMOL"}


@dataclass(frozen=True)
class Source:
    """A network in an artefact: the name to show, the file, the data it was trained on, and its recipe where there is a run."""

    name: str
    finished: Finished
    data: str
    recipe: Recipe | None = None

    @property
    def artefact(self) -> Path:
        """The file."""
        return self.finished.path

    @property
    def is_dense(self) -> bool:
        """A run that compressed nothing: the files of others are written from it."""
        return self.recipe is not None and not self.recipe.compresses

    @property
    def is_rival(self) -> bool:
        """Weights or channels dropped by another's method, and nothing else done to them."""
        if self.recipe is None or self.recipe.shares:
            return False
        asked = self.recipe.compression
        return asked.pruning not in (None, "cs") and asked.quantization_method is None and asked.budget is None

    @property
    def family(self) -> str:
        """Which kind of point its artefact is: our methods, or another's methods in our file."""
        if self.recipe is None:
            return "paretorch"
        asked = self.recipe.compression
        methods = [one for one in (asked.pruning_method, asked.quantization_method) if one is not None]
        combined = " + ".join([*(["sharing"] if self.recipe.shares else []), *(_OURS.get(one, one) for one in methods)])
        return f"paretorch, {combined}" if set(methods) <= set(_OURS) else f"{combined} in our file"


def find_sources(
    paths: list[Path], flags: Mapping[str, Any], out: Path, root: str | None, device: str
) -> tuple[list[Source], list[Path]]:
    """The networks, all of one data set, and the folders of runs that are not finished, which are left out.

    A folder without a run of its own is searched for runs, but for those below `out`, which a bench made itself. A run
    that is named itself must be finished. `flags` say what the files of a user's own networks do not.
    """
    data = flags.get("data.name")
    if data is not None and data not in IMAGES and not has_own_task(data):
        raise ConfigError(
            f"--data is {data!r}; accuracy is measured on images: choose one of {', '.join(IMAGES)}, or your own, folder:PATH"
        )

    def of_run(folder: Path) -> Source:
        return _of_run(find_finished(folder, flags, root, device))

    sources: list[Source] = []
    unfinished: list[Path] = []
    for path in paths:
        if path.is_file():
            sources.append(_of_file(find_finished(path, flags, root, device)))
        elif (path / "config.json").exists():
            sources.append(of_run(path))
        elif path.is_dir():
            folders = sorted(
                config.parent for config in path.rglob("config.json") if out.resolve() not in config.resolve().parents
            )
            if not folders:
                raise ConfigError(f"{path} holds no run: give folders that `pare train` wrote, or a folder of these")
            done = [folder for folder in folders if (folder / "model.pare").exists()]
            unfinished += [folder for folder in folders if folder not in done]
            sources += [of_run(folder) for folder in done]
        else:
            raise ConfigError(f"There is no {path}: give run folders, a folder of runs, or artefacts")
    sources = list({source.artefact.resolve(): source for source in sources}.values())
    if not sources:
        raise ConfigError(f"No run in {paths[0]} is finished: continue one with `pare train --out RUN --resume`")
    _require_one_data_set(sources)
    return _named_apart(sources), unfinished


def _of_run(finished: Finished) -> Source:
    folder, recipe = finished.path.parent, finished.recipe
    own = has_own_task(recipe.data.name)
    if (recipe.data.name not in IMAGES and not own) or recipe.network == "dcgan-generator":
        raise ConfigError(
            f"{folder} has no accuracy to draw: {recipe.network} on {recipe.data.name} is no classifier of images"
        )
    if not finished.path.exists():
        raise ConfigError(f"{folder} has no artefact yet: finish it with pare train --out {folder} --resume")
    return Source(folder.absolute().name, finished, recipe.data.name, recipe)  # "." has no name of its own


def _of_file(finished: Finished) -> Source:
    path, data = finished.path, finished.flags.get("data.name")
    if path.suffix != ".pare":
        raise ConfigError(f"{path} is no artefact: give run folders, or files that end in .pare")
    if data is None:
        raise ConfigError(f"{path} does not say what it was trained on: add --data, one of {', '.join(IMAGES)}")
    return Source(path.stem, finished, data)


def _require_one_data_set(sources: list[Source]) -> None:
    first = sources[0]
    for source in sources:
        if source.data != first.data:
            raise ConfigError(
                f"{first.name} was trained on {first.data} and {source.name} on {source.data}: "
                "one picture has one data set"
            )


def _named_apart(sources: list[Source]) -> list[Source]:
    """Names that are there twice get as many of the folders before them as it takes."""
    named = []
    for source in sources:
        alike = [_place(other) for other in sources if other.name == source.name and other is not source]
        own = _place(source)
        deep = next((n for n in range(1, len(own) + 1) if all(own[-n:] != place[-n:] for place in alike)), len(own))
        named.append(replace(source, name="/".join(own[-deep:])) if alike else source)
    return named


def _place(source: Source) -> tuple[str, ...]:
    """The folders above a network, its name last."""
    path = source.artefact.resolve()
    return (*(path.parent if source.recipe is not None else path).parts[1:-1], source.name)


KINDS = ("weights", "channels")
"""What can be taken away."""


def pruned(
    dense: Source,
    shares: Sequence[float],
    epochs: int,
    out: Path,
    runtime: Runtime,
    kinds: Sequence[str] = KINDS,
    chooser: str = "magnitude",
) -> list[Source]:
    """The dense network without these shares of its weights: the smallest ones, or whole channels; fine-tuned."""
    from paretorch.training import train

    assert dense.recipe is not None
    if dense.recipe.compression.norms is not None:
        raise ConfigError(f"{dense.name} has folded norms and cannot be trained on: train it without norms")
    found = []
    for share, kind in itertools.product(shares, kinds):
        by = {"weights": "mp", "channels": "channels" if chooser == "magnitude" else chooser}[kind]
        name = f"{dense.name}-{by}-{share:g}"
        if kind == "weights":
            recipe = _without_weights(dense.recipe, dense.artefact, share, epochs)
        else:
            cut = out / name / "start.pare"
            if not cut.exists():
                _cut(dense, share, cut, chooser)
            recipe = _without_channels(dense.recipe, cut, epochs)
        train(recipe, out / name, runtime, resume=True)
        found.append(Source(name, replace(dense.finished, path=out / name / "model.pare"), dense.data, recipe))
    return found


# Both train at a tenth of the rate, as after any pruning; the schedules of the dense run may name epochs that are not there.


def _without_weights(recipe: Recipe, start: Path, share: float, epochs: int) -> Recipe:
    schedule = replace(recipe.schedule, finetune_lr=None, finetune_name="cosine", finetune_milestones=None)
    pruned = replace(recipe.compression, pruning="mp", sparsity=share)
    return replace(recipe, start=str(start), epochs=0, finetune=epochs, schedule=schedule, compression=pruned)


def _without_channels(recipe: Recipe, start: Path, epochs: int) -> Recipe:
    optimizer = replace(recipe.optimizer, lr=recipe.optimizer.lr / 10)
    schedule = replace(recipe.schedule, name="cosine", milestones=(), warmup=0)
    return replace(recipe, start=str(start), epochs=epochs, optimizer=optimizer, schedule=schedule)


def _cut(dense: Source, share: float, path: Path, chooser: str) -> None:
    from paretorch import deploy
    from paretorch.deploy.rivals import prune_channels

    network = dense.finished.network()
    example = dense.finished.example(None, 1)
    if not isinstance(example, Tensor):
        raise ConfigError(
            f"--prune cuts channels of networks of one image, not of {dense.name}: add --prune-by weights"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    deploy.save(prune_channels(network, example, share, exclude=("head",), by=chooser), path)
