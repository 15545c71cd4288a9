"""`python -m paretorch.cli` is `pare`."""

from paretorch.cli import main

main()
