"""The plot of accuracy against sparsity, as an SVG file that stands alone."""

from statistics import fmean

from paretorch.report.charts import line_chart
from paretorch.report.files import in_report_colours
from paretorch.workflows.tickets.result import Result


def draw(result: Result) -> str:
    """One line a method, and the dense network as a level; there must be a ticket."""
    series = {
        # A path of one point is invisible, one of two equal points is a dot.
        method: [(100 * sparsity, 100 * accuracy) for sparsity, accuracy in (points if len(points) > 1 else 2 * points)]
        for method, points in result.curves().items()
    }
    if result.dense:
        level = 100 * fmean(row["accuracy"] for row in result.dense)
        far = max(x for points in series.values() for x, _ in points)
        series = {"dense": [(0.0, level), (far, level)], **series}
    plot = line_chart(
        "tickets",
        "Accuracy of retrained tickets",
        series,
        x_label="sparsity in per cent (accuracy on the validation split)",
        form=lambda value: f"{value:.4g} %",
    )
    return in_report_colours(plot)
