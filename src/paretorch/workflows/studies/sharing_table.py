"""What sharing saves and costs: parameters and the metric of each setting side by side, beside the network that shares nothing."""

from paretorch.deploy.measure.text import table as aligned
from paretorch.training.progress import headline
from paretorch.workflows.studies.cells import Numbers, distance, mean, with_spread
from paretorch.workflows.studies.results import Found, summarize
from paretorch.workflows.studies.study import Study


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
