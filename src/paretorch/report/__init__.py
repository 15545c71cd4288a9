"""Pages and plots of what a network costs and how it was trained."""

from paretorch.report.page import write_html

__all__ = ["write_html"]
