"""The step that the optimizers of this folder share. What differs between them is a `Rule`, and ε over time.

A step first puts the parameters into buckets (kernels/bucket.py), one per implementation that updates them, then combines
the norms of all buckets, then updates each bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypedDict

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim import Optimizer

from paretorch.errors import ConfigError
from paretorch.optim.hyperparameters import Hyperparameters, Rule, Scalar, check_group
from paretorch.optim.kernels import choose_implementation, make_bucket
from paretorch.optim.kernels.bucket import Bucket, Gradients, combine
from paretorch.optim.kernels.parameter import ParameterView, StepCounter, check_gradient, new_state
from paretorch.optim.state_dict import STATE_VERSION, dtypes_as_names, restore

Group = dict[str, Any]
Params = Iterable[Tensor] | Iterable[Group] | Iterable[tuple[str, Tensor]]
GroupBuckets = list[tuple[Group, Bucket]]


class Options(TypedDict, total=False):
    """The options that all optimizers here take beside their hyperparameters. Names and meanings are torch.optim's."""

    maximize: bool
    """Maximize instead of minimize."""
    foreach: bool | None
    """Use the multi-tensor implementation (True) or one tensor at a time (False)."""
    fused: bool | None
    """True or None, the default: one pass over memory. On a GPU a Triton kernel; on a CPU a loop in C, which is compiled at
    the first step, or chunks that fit the cache if there is no C compiler. False: neither."""
    capturable: bool
    """Keep the step count on the device, so that the step can be captured in a CUDA graph."""
    differentiable: bool
    """Not supported: True raises."""
    state_dtype: torch.dtype | None
    """The dtype of m and v. None, the default: fp32, or fp64 for fp64 parameters. bf16 is rounded stochastically."""
    seed: int
    """Of that rounding, which depends on (seed, step, parameter, element) alone."""


_DEFAULT_OPTIONS = Options(
    maximize=False, foreach=None, fused=None, capturable=False, differentiable=False, state_dtype=None, seed=0
)


class AdaptiveOptimizer(Optimizer):
    """w ← w − α · η ⊙ m with η = 1/(√v + ε), in the variant that `rule` describes.

    The sums behind the norm of η are not part of the state dict: they are computed from v after loading.

    Args:
        params: parameters or groups, as for every torch optimizer.
        defaults: the hyperparameters of groups that do not give their own.
        options: see `Options`.
    """

    rule: ClassVar[Rule]
    depends_on_step: ClassVar[bool] = False
    """Whether the hyperparameters depend on the number of the step."""
    grad_scale: Tensor | None = None
    """Set by torch's GradScaler, as is `found_inf`."""
    found_inf: Tensor | None = None
    _buckets: GroupBuckets | None
    _has_history: bool
    """Whether some coordinate has v > 0."""
    _counter: StepCounter
    # What the buckets were built from. Objects are compared by id; the buckets and `_without_state` keep them alive.
    _without_state: list[Tensor]
    """Parameters that never had a gradient, and so no state."""
    _built_params: list[int]
    _built_flags: list[Any]
    _built_states: list[int]

    def __init__(self, params: Params, defaults: Group, options: Options) -> None:
        unknown = set(options) - set(_DEFAULT_OPTIONS)
        if unknown:
            names = sorted(_DEFAULT_OPTIONS)
            raise TypeError(f"{type(self).__name__} has no option {sorted(unknown)}; its options are {names}")
        self._reset()
        super().__init__(params, {**defaults, **_DEFAULT_OPTIONS, **options, "version": STATE_VERSION})

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters. They have no history, so the first-step rule holds for each of their coordinates."""
        self._check({**self.defaults, **param_group})
        super().add_param_group(param_group)
        self._buckets = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step. A closure is evaluated first and its loss returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step_buckets()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors and plain values, in the layout of torch.optim."""
        hook = self.register_state_dict_post_hook(dtypes_as_names, prepend=True)
        try:
            return super().state_dict()
        finally:
            hook.remove()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, also one of torch.optim.Adam or of an earlier version; unknown entries are dropped."""
        restore(self, state_dict, super().load_state_dict, self._check)
        self._reset()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._reset()

    # torch.compile cannot trace kernels that are called with addresses. torch.compiler.disable would slow the import down.
    @_disable_dynamo
    def _step_buckets(self) -> None:
        self._check_capture()
        work = self._current_buckets()
        if not work:
            return
        grads = [bucket.gradients() for _, bucket in work]
        now = self._count_step(work)
        hypers = [
            self._hyperparameters(group, now[bucket.device]).representable_in(bucket.work_dtype)
            for group, bucket in work
        ]
        total = self._network_sums(work, grads, hypers) if self.rule.normalised else None
        for (_, bucket), gradients, hyper in zip(work, grads, hypers, strict=True):
            local = None if total is None else total.to(bucket.device, non_blocking=bucket.device.type != "cpu")
            bucket.update(gradients, hyper, local, now[bucket.device])
        if self.rule.normalised and not self._has_history:
            # The host waits for this number until the first gradient has been seen, and again only after edits of v.
            self._has_history = _any_live(_combined_sums(work))

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # Read by torch's GradScaler. If True, the kernel unscales and skips by itself, and the host need not wait.
        if self._buckets and not self._without_state:
            return all(bucket.handles_grad_scaler for _, bucket in self._buckets)
        found = [(group, param) for group in self.param_groups for param in group["params"]]
        return all(self._implementation(group, param, param) == "triton" for group, param in found)

    def _check(self, group: Group) -> None:
        check_group(group, type(self).__name__)

    def _hyperparameters(self, group: Group, now: Scalar) -> Hyperparameters:
        beta1, beta2 = group["betas"]
        lr = group["lr"]
        if isinstance(lr, Tensor):
            lr = float(lr) if lr.device.type == "cpu" else lr.reshape(())
        numbers = (lr, beta1, beta2, group["eps"], group["weight_decay"], group["maximize"])
        return Hyperparameters(*numbers, self.rule, self.grad_scale, self.found_inf)

    def _network_sums(self, work: GroupBuckets, grads: list[Gradients], hypers: list[Hyperparameters]) -> Tensor:
        """(Σ η², d) of the whole network: of v_{t−1}, or of v₁ if there is no history."""
        for (_, bucket), hyper in zip(work, hypers, strict=True):
            if bucket.is_stale(hyper):
                # An edit may have set every v to 0: then the rule of the first step holds again.
                self._has_history &= not bucket.was_edited() or _is_capturing()
                bucket.measure(hyper)
        total = _combined_sums(work)
        self._has_history = self._has_history or _any_live(total)
        if self._has_history:
            return total
        previews = [bucket.preview(g, hyper) for (_, bucket), g, hyper in zip(work, grads, hypers, strict=True)]
        return combine((sums, bucket.shard_groups) for sums, (_, bucket) in zip(previews, work, strict=True))

    def _count_step(self, work: GroupBuckets) -> dict[torch.device, Scalar]:
        """Count the step. The only bucket of a device counts on the device if it can, which saves a launch."""
        devices = [bucket.device for _, bucket in work]
        alone = {bucket.device for _, bucket in work if bucket.can_count_steps and devices.count(bucket.device) == 1}
        by_kernel = set() if self.depends_on_step else alone
        now = self._counter.advance(self.found_inf, by_kernel)
        for _, bucket in work:
            bucket.counts_steps = bucket.device in by_kernel and isinstance(now[bucket.device], Tensor)
        return now

    def _current_buckets(self) -> GroupBuckets:
        """The buckets, built again if a parameter or a state was added, removed or moved."""
        built = self._buckets
        if built is not None and self._are_current(built):
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

    def _are_current(self, built: GroupBuckets) -> bool:
        # A user may put other parameters into a group, change its flags, or clear and replace states.
        if self._param_ids() != self._built_params or self._flags() != self._built_flags:
            return False
        if [*map(id, self.state.values())] != self._built_states:
            return False
        if any([param.grad is not None for param in self._without_state]):  # noqa: C419 - lists are faster
            return False
        return all([view.is_current() for _, bucket in built for view in bucket.views])  # noqa: C419

    def _build(self) -> GroupBuckets:
        found: dict[tuple[Any, ...], list[ParameterView]] = {}
        self._without_state = []
        index = 0
        for number, group in enumerate(self.param_groups):
            for param in group["params"]:
                index += 1
                if "exp_avg" not in self.state.get(param, {}):
                    self._without_state.append(param)
                    continue
                view = ParameterView(param, self.state[param], index)
                implementation = self._implementation(group, param, view.p)
                key = (number, implementation, view.p.device, view.p.dtype, view.m.dtype, view.shard_groups)
                found.setdefault(key, []).append(view)
        self._built_params, self._built_flags = self._param_ids(), self._flags()
        self._built_states = [*map(id, self.state.values())]
        views = [(self.param_groups[key[0]], view) for key, members in found.items() for view in members]
        self._counter = StepCounter([(view, bool(group["capturable"])) for group, view in views])
        return [
            (self.param_groups[key[0]], make_bucket(key[1], members, self.param_groups[key[0]]["seed"]))
            for key, members in found.items()
        ]

    def _implementation(self, group: Group, param: Tensor, local: Tensor) -> str:
        # A state that was loaded, or made before model.double(), may have another dtype than the group asks for.
        moment = self.state.get(param, {}).get("exp_avg")
        state_dtype = group["state_dtype"] if moment is None else moment.dtype
        return choose_implementation({**group, "state_dtype": state_dtype}, local, type(self).__name__)

    def _param_ids(self) -> list[int]:
        return [id(param) for group in self.param_groups for param in group["params"]]

    def _flags(self) -> list[Any]:
        return [group[name] for group in self.param_groups for name in ("foreach", "fused", "capturable")]

    def _check_capture(self) -> None:
        if not _is_capturing():
            return
        if not all(group["capturable"] for group in self.param_groups):
            raise ConfigError(f"To capture {type(self).__name__} in a CUDA graph, build it with capturable=True")
        if self._buckets is None or (self.rule.normalised and not self._has_history):
            raise ConfigError(f"Take one step of {type(self).__name__} with gradients before capturing it in a graph")

    def _reset(self) -> None:
        self._buckets, self._has_history = None, False


def _combined_sums(work: GroupBuckets) -> Tensor:
    return combine((bucket.eta_sums(), bucket.shard_groups) for _, bucket in work)


def _any_live(total: Tensor) -> bool:
    return bool(total[1] > 0)


def _is_capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
