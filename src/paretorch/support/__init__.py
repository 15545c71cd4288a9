"""Small functions that all rooms use."""

__version__ = "0.1.0"  # as in pyproject.toml
