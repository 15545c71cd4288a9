"""The network of the ten lines under the trainer of Lightning."""

from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from paretorch.training.lightning import PlanCallback as LightningCallback
from tests.training.ten_lines import CLIP, STEPS, Net, Same, compressed, everything


class Module(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, everything: bool = False) -> None:
        super().__init__()
        self.net = Net()
        self.plan, self._optimizer = compressed(self.net)
        self._everything = everything

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        loss: Tensor = self.net(**batch)["loss"]
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return everything(self) if self._everything else self._optimizer


def fit(
    module: Module,
    folder: Path,
    steps: int = STEPS,
    start: str | None = None,
    rank: int = 0,
    callback: LightningCallback | None = None,
    **options: Any,
) -> Any:
    saving = lightning.callbacks.ModelCheckpoint(
        dirpath=folder, filename="{step}", every_n_train_steps=1, save_top_k=-1
    )
    trainer = lightning.Trainer(
        max_steps=steps,
        max_epochs=-1,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=CLIP,
        log_every_n_steps=1,
        callbacks=[callback or LightningCallback(), saving],
        **options,
    )
    trainer.fit(module, DataLoader(Same(rank), 2), ckpt_path=start)
    return trainer
