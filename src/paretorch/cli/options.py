"""The options that several of `pare train`, `pare tickets` and `pare tune` have, each declared once.

One that is left out is None, and leaves its field of the recipe as it is. What one command alone has stands with it.
"""

from pathlib import Path
from typing import Annotated

import typer

from paretorch.cli.values import DATA, Number, Text, Whole
from paretorch.training.schedules import SCHEDULES

# The panels of --help.
WHAT = "What to train"
HOW = "How to train"
SEARCH = "How to search"
WHERE = "Where and with what"

Config = Annotated[Path | None, typer.Option(help="A TOML or JSON file of recipe fields, or a run's config.json.")]

Network = Annotated[Text, typer.Option(help="A network of the zoo.", rich_help_panel=WHAT)]
Data = Annotated[Text, typer.Option(help=f"{', '.join(DATA)}.", rich_help_panel=WHAT)]

Batch = Annotated[
    Whole,
    typer.Option(help="Images, grids, columns of text or (multi30k) tokens a side, per step.", rich_help_panel=HOW),
]
WeightDecay = Annotated[Number, typer.Option(help="Weight decay.", rich_help_panel=HOW)]
Schedule = Annotated[Text, typer.Option(help=f"{', '.join(SCHEDULES)}.", rich_help_panel=HOW)]
Milestones = Annotated[Text, typer.Option(help="Epochs of the drops, such as 80,120.", rich_help_panel=HOW)]
Assignments = Annotated[
    list[str] | None, typer.Option("--set", help="Any other recipe field: NAME=VALUE.", rich_help_panel=HOW)
]

Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.", rich_help_panel=WHERE)]
Root = Annotated[Text, typer.Option(help="Folder of the data sets.", rich_help_panel=WHERE)]
Download = Annotated[bool, typer.Option("--download", help="Fetch missing data.", rich_help_panel=WHERE)]
Compile = Annotated[
    bool | None,
    typer.Option(
        "--compile/--no-compile",
        help="Compile the step (GPU).",
        show_default="in runs so long that it pays",
        rich_help_panel=WHERE,
    ),
]
Graph = Annotated[bool, typer.Option(help="Replay it as a CUDA graph (GPU).", rich_help_panel=WHERE)]
CheckpointEpochs = Annotated[int, typer.Option(help="Checkpoint every N epochs.", rich_help_panel=WHERE)]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print the end alone.", rich_help_panel=WHERE)]
