"""The options that several of `pare train`, `pare tickets` and `pare tune` have beside those of the recipe, each declared once.

Those of the recipe are in `paretorch.cli.recipe_flags`; what one command alone has stands with it.
"""

from pathlib import Path
from typing import Annotated

import typer

from paretorch.cli.values import Text

# The panels of --help.
WHAT = "What to train"
HOW = "How to train"
SMALL = "How small"
SEARCH = "How to search"
WHERE = "Where and with what"

Config = Annotated[Path | None, typer.Option(help="A TOML or JSON file of recipe fields, or a run's config.json.")]

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
Track = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Write the metrics there too: tensorboard, wandb or mlflow; may be given several times. Offline unless logged in.",
        rich_help_panel=WHERE,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print the end alone.", rich_help_panel=WHERE)]
