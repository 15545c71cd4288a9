"""One job of a queue, as a process: `python -m paretorch.cli.worker FOLDER CLAIM words of pare`."""

import os
import sys
from pathlib import Path

from paretorch.errors import PareError
from paretorch.support.processes import end_with_parent
from paretorch.training.files import claim_folder
from paretorch.workflows.queue.claims import LOST_CODE, adopt, patience


def main() -> None:
    """Adopt the claim that the parent has taken, and run the command."""
    parent = os.getppid()
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    end_with_parent()
    folder, number, *words = sys.argv[1:]
    try:
        claim = adopt(Path(folder), int(number))
    except PareError as error:
        print(f"pare: {error}", file=sys.stderr)
        raise SystemExit(LOST_CODE) from None
    was_lost = claim.follows_silence()
    claim_folder(Path(folder), 0.0 if was_lost else patience(), enter=was_lost)
    sys.argv = ["pare", *words]
    try:
        from paretorch.cli.app import app

        app()
    finally:
        if os.getppid() != parent:  # nobody is there who keeps the result and gives the job back
            claim.release()


if __name__ == "__main__":
    main()
