"""Cells of the tables of studies: numbers over the seeds, as people read them."""

from paretorch.training.progress import told

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
