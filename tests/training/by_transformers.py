"""The network of the ten lines under the trainer of transformers."""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from paretorch.training.transformers import PlanCallback as TransformersCallback
from tests.training.ten_lines import CLIP, STEPS, Same


def arguments(folder: Path, **options: Any) -> Any:
    return transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        max_steps=STEPS,
        lr_scheduler_type="constant",
        max_grad_norm=CLIP,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
        save_strategy="steps",
        save_steps=3,
        **options,
    )


def hf_trainer(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, folder: Path, rank: int = 0, **options: Any
) -> Any:
    return transformers.Trainer(
        model,
        arguments(folder, **options),
        train_dataset=Same(rank),
        optimizers=(optimizer, None),
        callbacks=[TransformersCallback()],
    )
