"""For `transformers.Trainer`: `callbacks=[PlanCallback()]`, and an optimizer of the plan's own groups.

    plan = pt.compress(model, pt.SMOL(target_bits=4.0), steps=1000)
    optimizer = torch.optim.AdamW(plan.param_groups(weight_decay=0.01), lr=5e-5)
    trainer = Trainer(model, args, train_dataset=data, optimizers=(optimizer, None), callbacks=[PlanCallback()])
    trainer.train()                # decisions are rounded after 1000 steps; the others fine-tune
    small = plan.finalize()

Checkpoints hold the plan too (`plan.pt`), and `trainer.train(resume_from_checkpoint=True)` goes on with it, in the same
`output_dir`. Sparsity, bits and the like are in `trainer.state.log_history` and in the trackers of `report_to`.

Evaluation before rounding is of a network that will be rounded, and usually better. So `load_best_model_at_end=True` and early
stopping begin anew once decisions are rounded: the best checkpoint is one of the rounded network, if there is one.

`PlanCallback(teacher=dense)` adds distillation: while training, the loss that the model returns becomes alpha · distillation +
(1 − alpha) · loss. Evaluation has the loss alone.
"""

import io
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paretorch.errors import ConfigError, MissingExtraError
from paretorch.support.inputs import ModelCall
from paretorch.training.callback import PlanStepper
from paretorch.training.distillation import ALPHA, Teacher
from paretorch.training.files import write_atomically

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_callback import CallbackHandler
except ImportError as error:
    raise MissingExtraError("PlanCallback needs transformers: pip install 'paretorch[transformers]'") from error

_FILE = "plan.pt"
_DEPTH = 4
"""Frames between the trainer's handler of callbacks and a callback."""
_ITEMS = "num_items_in_batch"  # which the trainer passes to models that take it
_TIES = "_tied_weights_keys"  # of a model: which of its keys are other names of the same tensor, and are not saved


class PlanCallback(TrainerCallback):
    """Steps and rounds the plan of the model that is trained.

    Args:
        teacher: A model to learn from, which takes what the trained one takes, such as a copy of it made before `compress`. It
            is moved to the same device, and put into evaluation mode for good. Default: none.
        alpha: The weight of the teacher's loss, from 0 to 1.
        temperature: Of the logits that are compared; see `pt.distillation_loss`.
    """

    def __init__(self, teacher: nn.Module | None = None, alpha: float = ALPHA, temperature: float = 1.0) -> None:
        self._distiller = None if teacher is None else _Distiller(Teacher(teacher, alpha, temperature))
        self._stepper: PlanStepper | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        scaler = getattr(kwargs["optimizer"], "scaler", None)
        if args.fp16 and scaler is None:
            raise ConfigError(
                "fp16=True without a GradScaler, as with DeepSpeed, leaves the gradients of decisions scaled: use bf16=True"
            )
        optimizer = _plain(kwargs["optimizer"])
        self._end()  # of a training that did not come to its end
        self._stepper = PlanStepper(kwargs["model"], [optimizer])
        if scaler is not None:
            self._stepper.follow_scaler(scaler)
        _come_first(self)
        if state.global_step:
            self._stepper.plan.load_state_dict(_plan_state(_checkpoint(args, state) / _FILE))
        _tell_ties(kwargs["model"])
        if self._distiller is not None:
            self._distiller.begin(kwargs["model"], args)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        kwargs["model"].__dict__.pop(_TIES, None)
        self._end()

    def _end(self) -> None:
        if self._stepper is not None:
            self._stepper.leave_scaler()
        if self._distiller is not None:
            self._distiller.end()

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        assert self._stepper is not None
        if self._stepper.after_step(_plain(kwargs["optimizer"])):
            _forget_best(state)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._stepper is not None and state.log_history:
            numbers = {f"plan_{name}": value for name, value in self._stepper.plan.metrics().items()}
            if self._distiller is not None and self._distiller.last is not None:
                numbers["plan_distillation"] = float(self._distiller.last)
            state.log_history[-1] |= numbers
            if kwargs.get("logs") is not None:
                kwargs["logs"] |= numbers  # which the trackers of the trainer read next

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._stepper is not None and state.is_world_process_zero:
            buffer = io.BytesIO()
            torch.save(self._stepper.plan.state_dict(), buffer)
            write_atomically(_checkpoint(args, state) / _FILE, buffer.getbuffer())


class _Distiller:
    """Adds the teacher's loss to the one that the model returns, by a hook: a callback sees neither loss nor batches."""

    def __init__(self, teacher: Teacher) -> None:
        self._teacher = teacher
        self._hook: Any = None
        self._autocast: Any = None
        self._share = 1.0
        self.last: torch.Tensor | None = None

    def begin(self, model: nn.Module, args: TrainingArguments) -> None:
        if args.label_smoothing_factor:
            raise ConfigError(
                "label_smoothing_factor computes a loss beside the model's, which teacher= does not reach: set it to 0"
            )
        self.end()  # of a training that did not come to its end
        self._teacher.prepare(model, args.device)
        half = torch.float16 if args.fp16 else torch.bfloat16
        self._autocast = torch.autocast(args.device.type, half, enabled=args.bf16 or args.fp16)
        # A model that divides by the items of all batches of a step is not divided by their number again.
        ranks = args.world_size if args.average_tokens_across_devices else 1
        self._share = 1 / (args.gradient_accumulation_steps * ranks)
        self._hook = model.register_forward_hook(self._add, with_kwargs=True)

    def end(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _add(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if not model.training:
            return None
        given = {name: value for name, value in kwargs.items() if name != _ITEMS}
        loss = output.get("loss") if isinstance(output, Mapping) else output[0] if isinstance(output, tuple) else None
        if not isinstance(loss, torch.Tensor) or loss.dim():
            raise ConfigError(
                "the model returns no loss for teacher= to add to: give it labels, and leave compute_loss_func out"
            )
        with self._autocast:
            distilled = self._teacher.repeat(ModelCall(args, given), output)
        self.last = distilled.detach()
        mixed = self._teacher.add(loss, distilled if kwargs.get(_ITEMS) is None else distilled * self._share)
        if isinstance(output, tuple):
            return (mixed, *output[1:])
        if isinstance(output, dict):  # a transformers output is one
            output["loss"] = mixed
            return output
        return {**output, "loss": mixed}


def _forget_best(state: TrainerState) -> None:
    """Decisions are rounded now: checkpoints from before, whose network was another one, are no longer the best.

    `load_best_model_at_end=True` would bring such a network back, unrounded.
    """
    state.best_metric = state.best_global_step = state.best_model_checkpoint = None


def _come_first(callback: TrainerCallback) -> None:
    """Move the callback before those that write logs, which the trainer puts before all of the user's: they get its numbers then."""
    frame: Any = sys._getframe(2)
    for _ in range(_DEPTH):
        handler = None if frame is None else frame.f_locals.get("self")
        if isinstance(handler, CallbackHandler) and callback in handler.callbacks:
            handler.callbacks.remove(callback)
            handler.callbacks.insert(0, callback)
            return
        frame = frame if frame is None else frame.f_back


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
