"""Pages and pictures, from plain records: what a network costs, how it was trained, how its layers share.

Nothing below this room imports it. `public` is `pt.report`; `page`, `sharing_pages` and `pareto` are documents; `charts`,
`history`, `sharing` and `tables` are their parts; `svg` and `files` are what these are made of.
"""

from paretorch.report.page import write_html
from paretorch.report.public import Report, report

__all__ = ["Report", "report", "write_html"]
