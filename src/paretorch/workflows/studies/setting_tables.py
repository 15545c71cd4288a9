"""Tables of a study's settings: what few bits cost, what sharing saves, or each setting's metric.

Of bits: those that were asked for, those that papers count, and those that the file takes. Nothing is chosen here, so the
metric of the task stands beside that of the dense network.
"""

from paretorch.deploy.measure.text import table as aligned
from paretorch.training.progress import headline, told
from paretorch.training.recipe import Recipe
from paretorch.workflows.studies.results import Found, summarize
from paretorch.workflows.studies.study import Study

Numbers = dict[str, dict[str, float]]
"""Mean and spread by the name of the number, as `summarize` gives them."""


def mean(numbers: Numbers, name: str, form: str) -> str:
    """The mean of a number over the seeds; a dash where there is none."""
    return form.format(numbers[name]["mean"]) if name in numbers else "–"


def with_spread(metric: str, one: dict[str, float]) -> str:
    """The mean of a metric, with its standard deviation where there is more than one seed."""
    return told(metric, one["mean"]) + (f" ± {told(metric, one['std'])}" if one["n"] > 1 else "")


def distance(metric: str, numbers: Numbers, dense: Numbers | None) -> str:
    """How far the mean of a metric is from that of the dense network."""
    if dense is None:
        return "–"
    lost = numbers[metric]["mean"] - dense[metric]["mean"]
    return ("+" if lost >= 0 else "−") + told(metric, abs(lost)).removesuffix(" %")


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


def show_sharing(study: Study, found: Found) -> list[str]:
    """A line for each setting with results; none where no network of the study shares."""
    settings: dict[str, Numbers] = summarize(study, found)["settings"]
    if not any(study.settings[name].shares for name in settings):
        return []
    metric = headline(next(iter(settings.values())))
    rows = [["setting", "parameters", "bytes", metric.replace("_", " "), "to dense", "seeds"]]
    for name, numbers in settings.items():
        recipe = study.settings[name]
        # With the same options: a network with dropout is held against the dense one with dropout.
        alike = [one for one, own in study.settings.items() if own.network_options == recipe.network_options]
        dense = next((settings[one] for one in alike if one in settings and not study.settings[one].compresses), None)
        apart = distance(metric, numbers, dense) if recipe.compresses else "–"
        sizes = [mean(numbers, size, "{:,.0f}") for size in ("parameters", "bytes")]
        rows.append([name, *sizes, with_spread(metric, numbers[metric]), apart, f"{numbers[metric]['n']:g}"])
    return aligned(rows)


def show_metric(study: Study, found: Found) -> list[str]:
    """A line for each setting with results; the validation part stands first, since choices are made by it."""
    settings: dict[str, Numbers] = summarize(study, found)["settings"]
    if not settings:
        return []
    metric = headline(next(iter(settings.values())))
    held_out = any(row.get("evaluated_on") == "validation" for row in found.values())
    columns = {metric.replace("test_", "validation ", 1): metric} if held_out else {}
    columns[metric.replace("_", " ")] = f"final_{metric}" if held_out else metric
    rows = [["setting", *columns, "seeds"]]
    for name, numbers in settings.items():
        cells = [with_spread(metric, numbers[one]) if one in numbers else "–" for one in columns.values()]
        rows.append([name, *cells, f"{numbers[metric]['n']:g}"])
    return aligned(rows)
