"""Pages and pictures, from plain records: what a network costs, how it was trained, how its layers share.

`measure` is `pt.report`. `page`, `sharing` and `pareto` are documents; `charts` and `tables` are their parts, made of `svg`
and written by `files`.
"""

from paretorch.report.measure import Report, report
from paretorch.report.page import write_html

__all__ = ["Report", "report", "write_html"]
