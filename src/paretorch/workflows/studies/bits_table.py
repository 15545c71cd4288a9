"""What few bits cost: of each setting the bits that were asked for, those that papers count, and those that the file takes.

Nothing is chosen here, so there are no held-out images: the metric of the task stands beside that of the dense network.
"""

from paretorch.deploy.measure.text import table as aligned
from paretorch.training.progress import headline
from paretorch.training.recipe import Recipe
from paretorch.workflows.studies.cells import Numbers, distance, mean, with_spread
from paretorch.workflows.studies.results import Found, summarize
from paretorch.workflows.studies.study import Study

_FROM_START = ("smol-printed", "bsq")  # their `bits` are those at the start: λ decides where they end
_HEAD = ["setting", "asked", "bits", "on disk", "bytes", "", "to dense", "seeds"]


def show_bits(study: Study, found: Found) -> list[str]:
    """A line for each setting with results; none where no network of the study has fewer bits."""
    settings: dict[str, Numbers] = summarize(study, found)["settings"]
    if not any("bits" in numbers for numbers in settings.values()):
        return []
    metric = headline(next(iter(settings.values())))
    dense = next((numbers for name, numbers in settings.items() if not study.settings[name].compresses), None)
    rows = [[name, *_cells(study.settings[name], numbers, metric, dense)] for name, numbers in settings.items()]
    return aligned([[word or metric.replace("_", " ") for word in _HEAD], *rows])


def _cells(recipe: Recipe, numbers: Numbers, metric: str, dense: Numbers | None) -> list[str]:
    asked = None if recipe.compression.quantization in _FROM_START else recipe.compression.bits
    return [
        "–" if asked is None else f"{asked:g}",
        mean(numbers, "bits", "{:.3f}"),
        mean(numbers, "bits_on_disk", "{:.3f}"),
        mean(numbers, "bytes", "{:,.0f}"),
        with_spread(metric, numbers[metric]),
        distance(metric, numbers, dense) if recipe.compresses else "–",
        f"{numbers[metric]['n']:g}",
    ]
