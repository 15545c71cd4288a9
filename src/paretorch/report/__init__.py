"""Pages and pictures, from plain records: what a network costs, how it was trained, how its layers share.

`measure` is `pt.report`. `page`, `comparison`, `sharing` and `pareto` are documents; `charts` are their parts. `markup` has the pieces
of both, and writes them. `hub` sends networks to Hugging Face.
"""

from paretorch.report.measure import Report, report
from paretorch.report.page import write_html

__all__ = ["Report", "report", "write_html"]
