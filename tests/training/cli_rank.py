"""One of two ranks of `pare`, for one command after the other: python -m tests.training.cli_rank FOLDER COMMANDS PORTS RANK."""

import json
import os
import sys
from pathlib import Path

import torch
from typer.testing import CliRunner

from paretorch.cli.app import app


def main(folder: Path, commands: list[list[str]], ports: list[int], rank: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    for number, (words, port) in enumerate(zip(commands, ports, strict=True)):
        os.environ["MASTER_PORT"] = str(port)
        done = CliRunner().invoke(app, words)
        (folder / f"{number}-{rank}.json").write_text(json.dumps([done.exit_code, done.output]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(json.loads, sys.argv[2:4]), int(sys.argv[4]))
