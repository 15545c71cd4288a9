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
"""

from typing import Any

from paretorch.errors import ConfigError, MissingExtraError
from paretorch.training.callback import Follower

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise MissingExtraError("PlanCallback needs lightning: pip install 'paretorch[lightning]'.") from error


class PlanCallback(Callback):
    """Steps and rounds the plan of the model that is trained, once for each optimizer step (not for each batch)."""

    def __init__(self) -> None:
        self._follower: Follower | None = None
        self._loaded: dict[str, Any] = {}
        self._seen = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if getattr(trainer.precision_plugin, "scaler", None) is not None:
            raise ConfigError(
                'precision="16-mixed" scales losses, and with them the gradients of decisions: use "bf16-mixed"'
            )
        self._follower, self._seen = Follower(pl_module, trainer.optimizers), trainer.global_step
        if self._loaded:
            self._follower.plan.load_state_dict(self._loaded)
            self._loaded = {}  # a later fit begins with a plan of its own

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if self._follower is None or trainer.global_step == self._seen:
            return
        self._seen = trainer.global_step
        self._follower.after_step(trainer.optimizers[0])
        if self._seen % max(getattr(trainer, "log_every_n_steps", 50), 1) == 0:
            pl_module.log_dict({f"plan/{name}": value for name, value in self._follower.plan.metrics().items()})

    def state_dict(self) -> dict[str, Any]:
        return {} if self._follower is None else self._follower.plan.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict
