"""The plan's state inside the model: buffers on the root module, with the same keys in every phase.

    paretorch_step    the one step counter, from which all schedules follow
    paretorch_phase   0 while searching, 1 once hardened
    paretorch_config  the configuration as JSON bytes: a checkpoint of another configuration is refused
    paretorch_<kind>  that method's schedule and controller values (fp32, kept as int32 bits)

Buffers on the root and no submodule: a model that iterates over its children (`nn.Sequential`) is left alone.
"""

import ast
import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.core.attach.weights import RelaxedWeight
from paretorch.core.method import Method
from paretorch.core.relaxation import PREFIX
from paretorch.errors import ConfigError

_NEAR = 0.05
_APART = 2**26  # steps between the samples of one step: no run is as long, and all samples stay within 32 bits
MOST_SAMPLES = 2**32 // _APART - 1
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # of a function in a list, another one in every process


class PlanState:
    """Reads and writes the buffers; keeps the hooks that watch the loading of a state."""

    def __init__(
        self,
        root: nn.Module,
        methods: tuple[Method, ...],
        steps: int,
        seed: int,
        device: torch.device,
        estimated: frozenset[str] = frozenset(),
        measured: frozenset[str] = frozenset(),
    ) -> None:
        self.root, self.steps = root, steps
        # Options, such as "precision.target_bits", that a budget, or a method itself, chose from the values at the start.
        self._estimated = estimated
        # Those that follow from measured times, which are never the same again.
        self._measured = measured
        self.order = list(root.state_dict())
        config = {"steps": steps, "seed": seed, **{method.kind: _describe(method) for method in methods}}
        self._config = json.dumps(config, sort_keys=True)
        self._defaults = {
            f"{m.kind}.{key}": value
            for m in methods
            for key, value in {**_defaults(m), **{name: _text(old) for name, old in m.before.items()}}.items()
        }
        self._names = [f"{PREFIX}{name}" for name in ("step", "phase", "config", *(m.kind for m in methods))]
        values = [
            torch.zeros((), dtype=torch.int64),
            torch.zeros((), dtype=torch.int64),
            torch.tensor(list(self._config.encode()), dtype=torch.uint8),
            *(torch.zeros(max(len(m.scalars), 1), dtype=torch.int32) for m in methods),
        ]
        for name, value in zip(self._names, values, strict=True):
            root.register_buffer(name, value.to(device))
        self._on_load: Callable[[bool], None] = lambda hard: None
        self._handles = [
            root.register_load_state_dict_pre_hook(self._compare),
            root.register_load_state_dict_post_hook(self._reread),
            root._register_state_dict_hook(self._save_latents),
        ]
        self._weights: list[RelaxedWeight] = []
        self._hard = False
        self._count: int | None = 0
        self._decisions: list[str] = []

    def watch(self, weights: list[RelaxedWeight], on_load: Callable[[bool], None]) -> None:
        """Save θ under the names of these weights, and call back, with its phase, when a state was loaded."""
        self._weights, self._on_load = weights, on_load

    @property
    def step(self) -> Tensor:
        counter: Tensor = getattr(self.root, f"{PREFIX}step")
        return counter

    def without_autocast(self) -> torch.autocast:
        """Inside, counts and averages are not those of a loop's autocast."""
        return torch.autocast(self.step.device.type, enabled=False)

    def count_step(self) -> int | None:
        """The number of the step that is under way, on the host; None in a CUDA graph, which repeats it without the host."""
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            self._count = None
            return None
        self._count = int(self.step) + 1 if self._count is None else self._count + 1
        return self._count

    @property
    def is_hard(self) -> bool:
        return self._hard

    @is_hard.setter
    def is_hard(self, hard: bool) -> None:
        self._hard = hard
        phase: Tensor = getattr(self.root, f"{PREFIX}phase")
        phase.fill_(int(hard))

    @contextmanager
    def shifted(self, number: int) -> Iterator[None]:
        """Inside, the step counter is far away: noise is a function of it, and no other step has the same."""
        self.step.add_(number * _APART)
        try:
            yield
        finally:
            self.step.sub_(number * _APART)

    def add_shared(self, name: str, value: Tensor) -> None:
        """A decision that several weights share, or a template of theirs, lives on the root, once."""
        self.root.register_parameter(name, value if isinstance(value, nn.Parameter) else nn.Parameter(value))
        self._names.append(name)

    def add_decision(self, name: str, value: Tensor) -> None:
        """As `add_shared`, of a decision: it stays fp32 when the model changes its dtype."""
        self.add_shared(name, value)
        self._decisions.append(name)
        # Of this module alone, and with it as an argument: a deep copy gets one for the copy.
        self.root.__dict__["_apply"] = partial(_move, self.root, self._decisions)

    def add_numbers(self, name: str, values: Tensor) -> None:
        """Numbers that a resumed run goes on with, whatever it would find itself; fp32, kept as int32 bits."""
        name = f"{PREFIX}{name}"
        self.root.register_buffer(name, values.detach().clone().view(torch.int32).to(self.step.device))
        self._names.append(name)

    def numbers(self, name: str) -> Tensor:
        """What `add_numbers` was given, or a loaded state had."""
        buffer: Tensor = getattr(self.root, f"{PREFIX}{name}")
        return buffer.view(torch.float32)

    def remove(self) -> None:
        """Leave no buffer, parameter or hook behind."""
        self.root.__dict__.pop("_apply", None)
        for handle in self._handles:
            handle.remove()
        for name in self._names:
            delattr(self.root, name)

    def _compare(self, _module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        saved = state.get(f"{prefix}{PREFIX}config")
        if saved is None:
            raise ConfigError("this state has no plan in it: load plain weights before compress, not after")
        if found := self.differences(saved):
            told = "; ".join(f"{key} {difference}" for key, difference in found.items())
            raise ConfigError(f"this state belongs to another plan: {told}")
        if self._estimated:
            self._take_estimates(saved)
        self._load_latents(state, prefix)
        own: Tensor = getattr(self.root, f"{PREFIX}config")
        state[f"{prefix}{PREFIX}config"] = own.clone()  # an older state may lack options that are at their defaults

    def _save_latents(self, _module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        """A state has θ under the name of the weight: W follows from it and from the decisions."""
        for weight in self._weights:
            latent = state.pop(f"{prefix}{weight.path}.latent", None)
            for key in (f"{prefix}{name}" for name in weight.names):
                if latent is not None and key in state and not isinstance(state[key], nn.Parameter):
                    state[key] = state[key] if weight.holds_latent else latent

    def _load_latents(self, state: dict[str, Any], prefix: str) -> None:
        for weight in self._weights:
            _rename_old(state, prefix, weight)
            values = [state[key] for name in weight.names if (key := f"{prefix}{name}") in state]
            latent: Tensor = values[0] if values else weight.latent  # without one, the missing name is reported
            state[f"{prefix}{weight.path}.latent"] = latent.detach().clone()

    def _take_estimates(self, saved: Tensor) -> None:
        """Go on with what the budget gave when the run began."""
        config, old = json.loads(self._config), json.loads(bytes(saved.tolist()))
        for key in self._estimated:
            kind, _, option = key.partition(".")
            config[kind][option] = old[kind].get(option, self._defaults[key])
        self._config = json.dumps(config, sort_keys=True)
        buffer = torch.tensor(list(self._config.encode()), dtype=torch.uint8, device=self.step.device)
        setattr(self.root, f"{PREFIX}config", buffer)

    def estimates(self, kind: str) -> dict[str, Any]:
        """The options of a method that a budget, or the look of the weights, gave."""
        own = json.loads(self._config)[kind]
        return {option: ast.literal_eval(own[option]) for option in own if f"{kind}.{option}" in self._estimated}

    def differences(self, saved: Tensor) -> dict[str, str]:
        """In which options a saved configuration differs from this one; one that it does not know is at its default."""
        present = _flatten(json.loads(self._config))
        try:
            old = _flatten(json.loads(bytes(saved.to(torch.uint8).tolist()).decode(errors="replace")))
        except (ValueError, AttributeError):
            raise ConfigError("this state belongs to another plan: its configuration cannot be read") from None
        methods = {key.partition(".")[0] for key in old if "." in key}
        old = {**{key: value for key, value in self._defaults.items() if key.partition(".")[0] in methods}, **old}
        keys = [key for key in sorted(old.keys() | present.keys()) if old.get(key) != present.get(key)]
        keys = [key for key in keys if key not in self._measured or old.get(key) in (None, "None")]
        keys = [key for key in keys if key not in self._estimated or not _are_near(old.get(key), present[key])]
        return {key: f"was {old.get(key, 'absent')}, is {present.get(key, 'absent')}" for key in keys}

    def _reread(self, *_: Any) -> None:
        phase: Tensor = getattr(self.root, f"{PREFIX}phase")
        self._count = None  # read from the state at the next step
        self._on_load(bool(phase))


def _rename_old(state: dict[str, Any], prefix: str, weight: RelaxedWeight) -> None:
    """Keys of version 0.1.0, in which weights were parametrized, become those of now."""
    for name in weight.names:
        module, _, attribute = name.rpartition(".")
        below = f"{prefix}{module}." if module else prefix
        old = f"{below}parametrizations.{attribute}."
        if f"{old}original" not in state:
            continue
        state[f"{prefix}{name}"] = state.pop(f"{old}original")
        for key in [key for key in state if key.startswith(f"{old}0.")]:
            value = state.pop(key)
            state[f"{prefix}{weight.path}.{key.removeprefix(f'{old}0.')}"] = value


def _move(root: nn.Module, decisions: list[str], fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """`root._apply(fn)`, after which the decisions on it are fp32 as before, and not by way of fewer digits."""
    before = {name: getattr(root, name).data for name in decisions}
    type(root)._apply(root, fn, recurse)
    for name, data in before.items():
        parameter: nn.Parameter = getattr(root, name)
        if parameter.dtype != data.dtype:
            parameter.data = data.to(parameter.device)
    return root


def _describe(method: Method) -> dict[str, str]:
    return {"method": type(method).__name__, **{one.name: _text(getattr(method, one.name)) for one in fields(method)}}


def _text(value: Any) -> str:
    if callable(value):
        return str(getattr(value, "__qualname__", type(value).__name__))
    return repr(value)


def _defaults(method: Method) -> dict[str, str]:
    found = {}
    for one in fields(method):
        if one.default is not MISSING:
            found[one.name] = _text(one.default)
        elif one.default_factory is not MISSING:
            found[one.name] = _text(one.default_factory())
    return found


def _are_near(old: str | None, new: str) -> bool:
    """Whether two targets may come from one budget: it also pays for biases and norms, whose bytes depend on their values.

    Names are chosen by the look of the weights, which may be others before the state is loaded.
    """
    if new.startswith("'"):
        return old is not None
    return old not in (None, "None") and math.isclose(float(old), float(new), rel_tol=_NEAR)


def _flatten(config: dict[str, Any]) -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in config.items():
        flat |= {f"{key}.{k}": str(v) for k, v in value.items()} if isinstance(value, dict) else {key: str(value)}
    return {key: _ADDRESS.sub("", text) for key, text in flat.items()}
