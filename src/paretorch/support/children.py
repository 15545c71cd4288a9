"""Starting Python modules of this package in processes of their own."""

import sys


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of this package, to be given to `subprocess`.

    `python -m` puts the current folder first on the path, so a paretorch.py (or numpy.py) beside a file that somebody sent
    would be run. `-P` leaves that folder out.

    Args:
        module: Its full name, such as "paretorch.cli".
        arguments: Words of its command line.
    """
    return [sys.executable, "-P", "-m", module, *arguments]
