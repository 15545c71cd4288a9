"""For Lightning: `Trainer(callbacks=[PlanCallback()])`, and an optimizer of the plan's own groups.

    class Mine(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = build()
            self.plan = pt.compress(self.net, pt.SMOL(target_bits=4.0), steps=1000)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.plan.param_groups(weight_decay=0.01), lr=1e-3)

Decisions are rounded after `steps` optimizer steps; the others fine-tune. Then `small = mine.plan.finalize()`. Checkpoints hold the plan
too, so that `fit(ckpt_path=…)` goes on with it. Sparsity, bits and the like are logged as plan/….

Validation before rounding is of a network that will be rounded, and usually better. So `ModelCheckpoint(monitor=…)` and
`EarlyStopping` begin anew once decisions are rounded: the best checkpoint is one of the rounded network.

`PlanCallback(teacher=dense)` adds distillation: the loss of `training_step` becomes alpha · distillation + (1 − alpha) · loss. The
teacher runs on what the network with the plan is called with in `training_step`, and their outputs are compared.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.errors import ConfigError, MissingExtraError
from paretorch.support.inputs import ModelCall
from paretorch.training.callback import PlanStepper
from paretorch.training.distillation import ALPHA, Teacher

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
except ImportError as error:
    raise MissingExtraError("PlanCallback needs lightning: pip install 'paretorch[lightning]'") from error


class PlanCallback(Callback):
    """Steps and rounds the plan of the model that is trained, once for each optimizer step (not for each batch).

    Args:
        teacher: A network to learn from, which takes what the network with the plan takes, such as a copy of it made before
            `compress`. It is moved to the same device, and put into evaluation mode for good. Default: none.
        alpha: The weight of the teacher's loss, from 0 to 1.
        temperature: Of the logits that are compared; see `pt.distillation_loss`.
    """

    def __init__(self, teacher: nn.Module | None = None, alpha: float = ALPHA, temperature: float = 1.0) -> None:
        self._distiller = None if teacher is None else _Distiller(Teacher(teacher, alpha, temperature))
        self._stepper: PlanStepper | None = None
        self._loaded: dict[str, Any] = {}
        self._seen = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stepper, self._seen = PlanStepper(pl_module, trainer.optimizers), trainer.global_step
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None:
            self._stepper.follow_scaler(scaler)
        if self._loaded:
            self._stepper.plan.load_state_dict(self._loaded)
            self._loaded = {}  # a later fit begins with a plan of its own
        if self._distiller is not None:
            self._distiller.begin(pl_module, self._stepper.plan.model)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._stepper is not None:
            self._stepper.leave_scaler()
        if self._distiller is not None:
            self._distiller.end(pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.on_train_end(trainer, pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if self._stepper is None or trainer.global_step == self._seen:
            return
        self._seen = trainer.global_step
        if self._stepper.after_step(trainer.optimizers[0]):
            _forget_best(trainer)
        if self._seen % max(getattr(trainer, "log_every_n_steps", 50), 1) == 0:
            pl_module.log_dict({f"plan/{name}": value for name, value in self._stepper.plan.metrics().items()})
            if self._distiller is not None and self._distiller.last is not None:
                pl_module.log("plan/distillation", self._distiller.last)

    def state_dict(self) -> dict[str, Any]:
        return {} if self._stepper is None else self._stepper.plan.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict


def _forget_best(trainer: Trainer) -> None:
    """Decisions are rounded now: checkpoints from before, whose network was another one, are no longer the best. Their files stay."""
    own: Any = trainer
    for one in own.callbacks:
        if isinstance(one, ModelCheckpoint) and one.monitor is not None:
            one.best_k_models, one.best_model_score, one.current_score = {}, None, None
            one.best_model_path = one.kth_best_model_path = ""
            one.kth_value = torch.tensor(torch.inf if one.mode == "min" else -torch.inf)
        elif isinstance(one, EarlyStopping):
            one.wait_count, one.best_score = 0, torch.tensor(torch.inf if one.mode == "min" else -torch.inf)


class _Distiller:
    """Adds the teacher's loss to what `training_step` returns: while it trains, the module has a step of its own."""

    def __init__(self, teacher: Teacher) -> None:
        self._teacher = teacher
        self._calls: list[tuple[ModelCall, Any]] = []
        self._hook: Any = None
        self.last: Tensor | None = None

    def begin(self, module: LightningModule, student: nn.Module) -> None:
        if not module.automatic_optimization:
            raise ConfigError(
                "teacher= adds to the loss that training_step returns, and manual optimization returns none: add "
                "pt.distillation_loss to your own"
            )
        self._teacher.prepare(student, module.device)
        self._hook = student.register_forward_hook(self._record_call, with_kwargs=True)
        step = module.training_step

        def taught(*args: Any, **kwargs: Any) -> Any:
            self._calls.clear()
            return self._added(step(*args, **kwargs))

        module.__dict__["training_step"] = taught  # found before the method of its class

    def end(self, module: LightningModule) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
            module.__dict__.pop("training_step", None)

    def _record_call(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if torch.is_grad_enabled():
            self._calls.append((ModelCall(args, kwargs), output))

    def _added(self, result: Any) -> Any:
        if result is None:  # the batch is skipped
            return None
        if not self._calls:
            raise ConfigError(
                "training_step does not call the network with the plan: there is nothing to compare with teacher="
            )
        distilled = torch.stack([self._teacher.repeat(call, output) for call, output in self._calls]).mean()
        self._calls.clear()
        self.last = distilled.detach()
        if isinstance(result, Mapping):
            return {**result, "loss": self._teacher.add(result["loss"], distilled)}
        return self._teacher.add(result, distilled)
