"""`python -m paretorch.cli` is `pare`."""

from paretorch.cli import main

if __name__ == "__main__":
    main()
