"""The life of a step, shared by the optimizers of this folder; what differs between them is a `Rule`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypedDict

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim import Optimizer

from paretorch.errors import ConfigError
from paretorch.optim.checks import check_group
from paretorch.optim.kernels.bucket import Bucket, Gradients
from paretorch.optim.kernels.clock import Clock
from paretorch.optim.kernels.leaf import Leaf, check_gradient, new_state
from paretorch.optim.kernels.modes import choose_mode, make_bucket
from paretorch.optim.kernels.norm import combine
from paretorch.optim.rule import Hyper, Rule, Scalar
from paretorch.optim.states import STATE_VERSION, plain, restore

Group = dict[str, Any]
Params = Iterable[Tensor] | Iterable[Group] | Iterable[tuple[str, Tensor]]


class Options(TypedDict, total=False):
    """What every optimizer here takes beside its numbers; the names and meanings are those of torch.optim."""

    maximize: bool
    """Ascend instead."""
    foreach: bool | None
    """Force the multi-tensor implementation (True) or one tensor at a time (False)."""
    fused: bool | None
    """True or None, the default: one pass over memory, by a Triton kernel on a GPU and on a CPU by a loop in C, which is
    compiled at the first step if there is a C compiler; without one, in cache-sized pieces. False: neither."""
    capturable: bool
    """Keep the step count on the device, so that the step can be captured in a CUDA graph."""
    differentiable: bool
    """Refused if True."""
    state_dtype: torch.dtype | None
    """Of m and v: fp32 (fp64 for fp64 parameters) unless given; bf16 is rounded stochastically."""
    seed: int
    """Of that rounding, which depends on (seed, step, parameter, element) alone."""


_OPTIONS = Options(
    maximize=False, foreach=None, fused=None, capturable=False, differentiable=False, state_dtype=None, seed=0
)


class AdaptiveOptimizer(Optimizer):
    """w ← w − α · η ⊙ m, η = 1/(√v + ε), with the variations that `rule` names.

    The sums behind the norm are in no checkpoint: they are taken from v again after loading.
    """

    rule: ClassVar[Rule]
    needs_time: ClassVar[bool] = False
    """Whether the numbers of a step depend on its count."""
    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None
    _buckets: list[tuple[Group, Bucket]] | None
    _has_history: bool
    _clock: Clock
    _waiting: list[Tensor]
    """Parameters that never had a gradient, and so no state."""
    _parameters: list[int]
    """Those that the buckets were built for, by identity: leaves and `_waiting` keep them alive."""
    _ways: list[Any]
    _states: list[int]

    def __init__(self, params: Params, numbers: Group, options: Options) -> None:
        unknown = set(options) - set(_OPTIONS)
        if unknown:
            raise TypeError(f"{type(self).__name__} knows no {sorted(unknown)}; its options are {sorted(_OPTIONS)}.")
        self._forget()
        super().__init__(params, {**numbers, **_OPTIONS, **options, "version": STATE_VERSION})

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters. They have no history, so the first-step rule holds for each of their coordinates."""
        self._check({**self.defaults, **param_group})
        super().add_param_group(param_group)
        self._buckets = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step; a closure is evaluated first and its loss returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._advance()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """As of every torch optimizer, of tensors and plain values."""
        first = self.register_state_dict_post_hook(plain, prepend=True)
        try:
            return super().state_dict()
        finally:
            first.remove()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, also one of torch.optim.Adam or of an earlier version; unknown entries are dropped."""
        restore(self, state_dict, super().load_state_dict, self._check)
        self._forget()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget()

    # It is one kernel already, called with addresses, which torch.compile cannot follow; torch.compiler.disable would slow the import.
    @_disable_dynamo
    def _advance(self) -> None:
        self._check_capture()
        work = self._refreshed()
        if not work:
            return
        grads = [bucket.gradients() for _, bucket in work]
        now = self._tick(work)
        hypers = [self._hyper(group, now[bucket.device]).within(bucket.work_dtype) for group, bucket in work]
        total = self._total(work, grads, hypers) if self.rule.normalised else None
        for (_, bucket), gradients, hyper in zip(work, grads, hypers, strict=True):
            near = None if total is None else total.to(bucket.device, non_blocking=bucket.device.type != "cpu")
            bucket.update(gradients, hyper, near, now[bucket.device])
        self._look_for_history(work)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # Asked by torch's GradScaler: the kernel unscales and skips by itself, so that the host need not wait.
        if self._buckets and not self._waiting:
            return all(bucket.unscales for _, bucket in self._buckets)
        found = [(group, param) for group in self.param_groups for param in group["params"]]
        return all(self._mode(group, param, param) == "triton" for group, param in found)

    def _check(self, group: Group) -> None:
        check_group(group, type(self).__name__)

    def _hyper(self, group: Group, now: Scalar) -> Hyper:
        beta1, beta2 = group["betas"]
        lr = group["lr"]
        if isinstance(lr, Tensor):
            lr = float(lr) if lr.device.type == "cpu" else lr.reshape(())
        numbers = (lr, beta1, beta2, group["eps"], group["weight_decay"], group["maximize"])
        return Hyper(*numbers, self.rule, self.grad_scale, self.found_inf)

    def _total(self, work: list[tuple[Group, Bucket]], grads: list[Gradients], hypers: list[Hyper]) -> Tensor:
        for (_, bucket), hyper in zip(work, hypers, strict=True):
            if bucket.stale(hyper):
                # An edit may have emptied every v: then the rule of the first step holds again.
                self._has_history &= not bucket.edited() or _capturing()
                bucket.measure(hyper)
        total = _total(work)
        self._has_history = self._has_history or _has_live(total)
        if self._has_history:
            return total
        previews = [bucket.preview(g, hyper) for (_, bucket), g, hyper in zip(work, grads, hypers, strict=True)]
        return combine((stats, bucket.shards) for stats, (_, bucket) in zip(previews, work, strict=True))

    def _look_for_history(self, work: list[tuple[Group, Bucket]]) -> None:
        # Until the first gradient has been seen, and then after edits alone, the host waits for the count of live coordinates.
        if self.rule.normalised and not self._has_history:
            self._has_history = _has_live(_total(work))

    def _tick(self, work: list[tuple[Group, Bucket]]) -> dict[torch.device, Scalar]:
        """Count the step. Where a device's only bucket can count on the device, it will: one launch less."""
        devices = [bucket.device for _, bucket in work]
        alone = {bucket.device for _, bucket in work if bucket.counts and devices.count(bucket.device) == 1}
        left = set() if self.needs_time else alone
        now = self._clock.tick(self.found_inf, left)
        for _, bucket in work:
            bucket.counting = bucket.device in left and isinstance(now[bucket.device], Tensor)
        return now

    def _refreshed(self) -> list[tuple[Group, Bucket]]:
        """The buckets, built again when a parameter or a state appeared, vanished or moved."""
        built = self._buckets
        if built is not None and self._as_before(built):
            return built
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                check_gradient(param, type(self).__name__)
                if "exp_avg" not in self.state[param]:
                    self.state[param] = new_state(param, group["state_dtype"])
        built = self._buckets = self._build()
        return built

    def _as_before(self, built: list[tuple[Group, Bucket]]) -> bool:
        # A user may put other parameters in a group, or have them stepped in another way.
        if self._identities() != self._parameters or self._flags() != self._ways:
            return False
        # A state that was cleared or replaced: compared by identity, the old ones are kept alive by the leaves.
        if [*map(id, self.state.values())] != self._states:
            return False
        if any([param.grad is not None for param in self._waiting]):  # noqa: C419 - lists are faster
            return False
        return all([leaf.current() for _, bucket in built for leaf in bucket.leaves])  # noqa: C419

    def _build(self) -> list[tuple[Group, Bucket]]:
        found: dict[tuple[Any, ...], list[Leaf]] = {}
        self._waiting = []
        index = 0
        for number, group in enumerate(self.param_groups):
            for param in group["params"]:
                index += 1
                if "exp_avg" not in self.state.get(param, {}):
                    self._waiting.append(param)
                    continue
                leaf = Leaf(param, self.state[param], index)
                mode = self._mode(group, param, leaf.p)
                key = (number, mode, leaf.p.device, leaf.p.dtype, leaf.m.dtype, leaf.shards)
                found.setdefault(key, []).append(leaf)
        self._parameters, self._ways = self._identities(), self._flags()
        self._states = [*map(id, self.state.values())]
        leaves = [(self.param_groups[key[0]], leaf) for key, members in found.items() for leaf in members]
        self._clock = Clock([(leaf, bool(group["capturable"])) for group, leaf in leaves])
        return [
            (self.param_groups[key[0]], make_bucket(key[1], members, self.param_groups[key[0]]["seed"]))
            for key, members in found.items()
        ]

    def _mode(self, group: Group, param: Tensor, seen: Tensor) -> str:
        # What is there counts, not what was asked for: a state that was loaded, or made before model.double(), may have another dtype.
        moment = self.state.get(param, {}).get("exp_avg")
        kept = group["state_dtype"] if moment is None else moment.dtype
        return choose_mode({**group, "state_dtype": kept}, seen, type(self).__name__)

    def _identities(self) -> list[int]:
        return [id(param) for group in self.param_groups for param in group["params"]]

    def _flags(self) -> list[Any]:
        return [group[name] for group in self.param_groups for name in ("foreach", "fused", "capturable")]

    def _check_capture(self) -> None:
        if not _capturing():
            return
        if not all(group["capturable"] for group in self.param_groups):
            raise ConfigError(f"To capture {type(self).__name__} in a CUDA graph, build it with capturable=True.")
        if self._buckets is None or (self.rule.normalised and not self._has_history):
            raise ConfigError(f"Take one step of {type(self).__name__} with gradients before capturing it in a graph.")

    def _forget(self) -> None:
        self._buckets, self._has_history = None, False


def _total(work: list[tuple[Group, Bucket]]) -> Tensor:
    return combine((bucket.stats(), bucket.shards) for _, bucket in work)


def _has_live(total: Tensor) -> bool:
    return bool(total[1] > 0)


def _capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
