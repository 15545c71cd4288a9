"""What a study of anything else found: the metric of each setting, over the validation part too where runs held one out."""

from paretorch.deploy.measure.text import table as aligned
from paretorch.training.progress import headline
from paretorch.workflows.studies.cells import Numbers, with_spread
from paretorch.workflows.studies.results import Found, summarize
from paretorch.workflows.studies.study import Study


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
