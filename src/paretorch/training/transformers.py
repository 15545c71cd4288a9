"""For `transformers.Trainer`: `callbacks=[PlanCallback()]`, and an optimizer of the plan's own groups.

    plan = pt.compress(model, pt.SMOL(target_bits=4.0), steps=1000)
    optimizer = torch.optim.AdamW(plan.param_groups(weight_decay=0.01), lr=5e-5)
    trainer = Trainer(model, args, train_dataset=data, optimizers=(optimizer, None), callbacks=[PlanCallback()])
    trainer.train()                # decisions are rounded after 1000 steps; the others fine-tune
    small = plan.finalize()

Checkpoints hold the plan too (`plan.pt`), and `trainer.train(resume_from_checkpoint=True)` goes on with it, in the same
`output_dir`. Sparsity, bits and the like are in `trainer.state.log_history`.
"""

import io
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paretorch.errors import ConfigError, MissingExtraError
from paretorch.training.callback import Follower
from paretorch.training.files import write_atomically

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise MissingExtraError("PlanCallback needs transformers: pip install 'paretorch[transformers]'.") from error

_FILE = "plan.pt"
_TIES = "_tied_weights_keys"  # of a model: which of its keys are other names of the same tensor, and are not saved


class PlanCallback(TrainerCallback):
    """Steps and rounds the plan of the model that is trained."""

    def __init__(self) -> None:
        self._follower: Follower | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if args.fp16:
            raise ConfigError("fp16=True scales losses, and with them the gradients of decisions: use bf16=True")
        optimizer = _plain(kwargs["optimizer"])
        self._follower = Follower(kwargs["model"], [optimizer])
        if state.global_step:
            self._follower.plan.load_state_dict(_plan_state(_checkpoint(args, state) / _FILE))
        _tell_ties(kwargs["model"])

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        kwargs["model"].__dict__.pop(_TIES, None)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        assert self._follower is not None
        self._follower.after_step(_plain(kwargs["optimizer"]))

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._follower is not None and state.log_history:
            numbers = self._follower.plan.metrics()
            state.log_history[-1] |= {f"plan_{name}": value for name, value in numbers.items()}

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._follower is not None and state.is_world_process_zero:
            buffer = io.BytesIO()
            torch.save(self._follower.plan.state_dict(), buffer)
            write_atomically(_checkpoint(args, state) / _FILE, buffer.getbuffer())


def _tell_ties(model: nn.Module) -> None:
    """While it is trained, a tied weight and its decisions have longer names; checkpoints hold each once."""
    if not hasattr(model, _TIES):
        return
    first: dict[int, str] = {}
    names = {name: first.setdefault(id(one), name) for name, one in model.state_dict(keep_vars=True).items()}
    more = {name: source for name, source in names.items() if name != source}
    model.__dict__[_TIES] = {**(getattr(model, _TIES) or {}), **more}


def _plan_state(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise ConfigError(
            f"{path}, the plan's part of the checkpoint, is not there: resume with the output_dir that the checkpoint is "
            f"in, or from an earlier one"
        )
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def _plain(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer itself, without what accelerate puts around it."""
    inner: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
    return inner


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir or ".") / f"checkpoint-{state.global_step}"
