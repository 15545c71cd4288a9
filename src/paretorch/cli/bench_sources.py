"""What `pare bench` compares: networks from run folders and artefacts, each with the kind of file it is to be."""

from dataclasses import dataclass, replace
from pathlib import Path

from paretorch.cli.inputs import SHAPES, recipe_of
from paretorch.errors import ConfigError
from paretorch.training.recipe import Recipe

IMAGES = tuple(SHAPES)
_OURS = {"cs": "CS", "smol": "SMOL", "smol-printed": "SMOL", "given": "SMOL"}


@dataclass(frozen=True)
class Source:
    """A network in an artefact: the name to show, the file, the data it was trained on, and its recipe where there is a run."""

    name: str
    artefact: Path
    data: str
    recipe: Recipe | None = None

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
        told = " + ".join([*(["sharing"] if self.recipe.shares else []), *(_OURS.get(one, one) for one in methods)])
        return f"paretorch, {told}" if set(methods) <= set(_OURS) else f"{told} in our file"


def find_sources(paths: list[Path], data: str | None, out: Path) -> tuple[list[Source], list[Path]]:
    """The networks, all of one data set, and the folders of runs that are not finished, which are left out.

    A folder without a run of its own is searched for runs, but for those below `out`, which a bench made itself. A run
    that is named itself must be finished.
    """
    if data is not None and data not in IMAGES:
        raise ConfigError(f"--data is {data!r}; accuracy is measured on images: choose one of {', '.join(IMAGES)}.")
    sources: list[Source] = []
    unfinished: list[Path] = []
    for path in paths:
        if path.is_file():
            sources.append(_of_file(path, data))
        elif (path / "config.json").exists():
            sources.append(_of_run(path))
        elif path.is_dir():
            folders = sorted(
                config.parent for config in path.rglob("config.json") if out.resolve() not in config.resolve().parents
            )
            if not folders:
                raise ConfigError(f"{path} holds no run: give folders that `pare train` wrote, or a folder of these.")
            done = [folder for folder in folders if (folder / "model.pare").exists()]
            unfinished += [folder for folder in folders if folder not in done]
            sources += [_of_run(folder) for folder in done]
        else:
            raise ConfigError(f"There is no {path}: give run folders, a folder of runs, or artefacts.")
    sources = list({source.artefact.resolve(): source for source in sources}.values())
    if not sources:
        raise ConfigError(f"No run in {paths[0]} is finished: continue one with `pare train --out RUN --resume`.")
    _require_one_data_set(sources)
    return _named_apart(sources), unfinished


def _of_run(folder: Path) -> Source:
    artefact = folder / "model.pare"
    recipe = recipe_of(folder)
    if recipe.data.name not in IMAGES or recipe.network == "dcgan-generator":
        raise ConfigError(
            f"{folder} has no accuracy to draw: {recipe.network} on {recipe.data.name} is no classifier of images."
        )
    if not artefact.exists():
        raise ConfigError(f"{folder} has no artefact yet: finish it with pare train --out {folder} --resume")
    return Source(folder.absolute().name, artefact, recipe.data.name, recipe)  # "." has no name of its own


def _of_file(path: Path, data: str | None) -> Source:
    if path.suffix != ".pare":
        raise ConfigError(f"{path} is no artefact: give run folders, or files that end in .pare.")
    if data is None:
        raise ConfigError(f"{path} does not say what it was trained on: add --data, one of {', '.join(IMAGES)}.")
    return Source(path.stem, path, data)


def _require_one_data_set(sources: list[Source]) -> None:
    first = sources[0]
    for source in sources:
        if source.data != first.data:
            raise ConfigError(
                f"{first.name} was trained on {first.data} and {source.name} on {source.data}: "
                "one picture has one data set."
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
