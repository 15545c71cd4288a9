"""What few bits cost: of each setting the bits that were asked for, those that papers count, and those that the file takes.

Nothing is chosen here, so there are no held-out images: the metric of the task stands beside that of the dense network.
"""

from typing import Any

from paretorch.deploy.text import table as aligned
from paretorch.studies.results import Found, summarize
from paretorch.studies.study import Study
from paretorch.training.progress import headline, told
from paretorch.training.recipe import Recipe

_FROM_START = ("smol-printed", "bsq")  # their `bits` are those at the start: λ decides where they end
_HEAD = ["setting", "asked", "bits", "on disk", "bytes", "", "to dense", "seeds"]

Numbers = dict[str, dict[str, float]]


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
    asked = None if recipe.quantization in _FROM_START else recipe.bits
    return [
        "–" if asked is None else f"{asked:g}",
        _mean(numbers, "bits", "{:.3f}"),
        _mean(numbers, "bits_on_disk", "{:.3f}"),
        _mean(numbers, "bytes", "{:,.0f}"),
        _with_spread(metric, numbers[metric]),
        _distance(metric, numbers, dense) if recipe.compresses else "–",
        f"{numbers[metric]['n']:g}",
    ]


def _mean(numbers: Numbers, name: str, form: str) -> str:
    return form.format(numbers[name]["mean"]) if name in numbers else "–"


def _with_spread(metric: str, one: dict[str, Any]) -> str:
    return told(metric, one["mean"]) + (f" ± {told(metric, one['std'])}" if one["n"] > 1 else "")


def _distance(metric: str, numbers: Numbers, dense: Numbers | None) -> str:
    if dense is None:
        return "–"
    lost = numbers[metric]["mean"] - dense[metric]["mean"]
    return ("+" if lost >= 0 else "−") + told(metric, abs(lost)).removesuffix(" %")
