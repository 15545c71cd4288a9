"""`optimize`: the same network with faster layers if they are measured to be faster, and what was chosen and why."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from paretorch.deploy.fast.replacements import (
    capture_inputs,
    could_be_replaced,
    find_replacements,
    replace_modules,
)
from paretorch.deploy.measure.latency import Call, Timer, is_faster, speedup_in_words, timer
from paretorch.deploy.packed.swap import why_kept
from paretorch.deploy.plain import copied
from paretorch.errors import ConfigError
from paretorch.support.eval_mode import checked_example, first_sentence
from paretorch.support.inputs import Example, ModelCall, read_example, tensors_in


@dataclass(frozen=True)
class Choice:
    """One layer: what was chosen for it, why, and the median milliseconds of every candidate."""

    layer: str
    chosen: str
    reason: str
    milliseconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Summary:
    """All choices and their effect together; `print` it.

    Args:
        choices: One per candidate layer.
        changed: Whether the model was changed; `reason` says why, or why not.
        before_ms: Median milliseconds of the model.
        after_ms: Median milliseconds with the chosen layers.
        difference: The largest difference of an output, relative to the largest output.
    """

    choices: tuple[Choice, ...]
    changed: bool
    reason: str
    before_ms: float | None = None
    after_ms: float | None = None
    difference: float | None = None

    def __str__(self) -> str:
        names = [choice.layer for choice in self.choices]
        wide = max([len(name) for name in [*names, "model"]])
        kinds = max([len(choice.chosen) for choice in self.choices] + [len("dense")])
        rows = [f"{c.layer:{wide}}  {c.chosen:{kinds}}  {c.reason}" for c in self.choices]
        verdict = "faster" if self.changed else "as it was"
        return "\n".join([*rows, f"{'model':{wide}}  {verdict}: {self.reason}"])


_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
_COARSE = 2e-2  # bf16 and fp16: a few units in the last place
_DENSE = "dense"


class Optimized(NamedTuple):
    """`model, summary = optimize(…)`: a plain module and what was chosen."""

    model: nn.Module
    summary: Summary


def optimize(
    model: nn.Module,
    example: Example,
    *,
    tolerance: float | None = None,
    rounds: int = 7,
    seconds: float = 0.03,
    graphs: bool = False,
    timer: Timer | None = None,
) -> Optimized:
    """Return a copy of the model with faster layers if they were measured to be faster; else the model itself.

    Candidates are Linear layers and 1 × 1 convolutions, and subclasses that do not override `forward`. Each replacement is
    timed against the dense layer in turns, on the inputs that the layer gets from the example; then the whole copy is timed
    against the model. If the copy is not faster, or an output differs too much, the model itself is returned, and the summary
    says why. The choice is valid for the device, the dtype, the number of threads and about the batch size of the example.
    The copy is in eval mode.

    Args:
        example: A batch of typical inputs: a tensor, a tuple of the model's arguments, or a dict of keyword arguments.
        tolerance: The largest difference of an output to accept, relative to the largest output. Default: 1e-4 for
            float32, 2e-2 for bf16.
        rounds: How often each candidate is timed.
        seconds: How long each candidate is timed per round.
        graphs: On a GPU, time calls replayed from CUDA graphs, without the overhead of Python.
        timer: Replaces the clock: maps named calls to milliseconds, one per round.

    Example:
        >>> import torch, paretorch as pt
        >>> network = torch.nn.Sequential(torch.nn.Linear(64, 64)).eval()
        >>> inputs = torch.randn(8, 64)
        >>> fast = pt.optimize(network, inputs, rounds=1, seconds=0.001)
        >>> torch.allclose(fast.model(inputs), network(inputs), atol=1e-3)
        True
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"optimize takes a module, not {type(model).__name__}")
    call = read_example(example, dims=0)
    if rounds < 1 or seconds <= 0:
        raise ConfigError(f"rounds must be at least 1 and seconds above 0, not {rounds} and {seconds}")
    if tolerance is not None and not tolerance > 0:
        raise ConfigError(
            f"tolerance={tolerance!r}: give the largest difference to accept, relative to the largest output"
        )
    reference = copied(model, "optimize")
    layers = {module: name for name, module in reference.named_modules() if could_be_replaced(module)}
    layer_timer = timer or _default_timer(reference, call, rounds, seconds, graphs)
    # Settings of a kernel differ by less time than Python takes to launch it.
    kernel_timer = timer or _default_timer(reference, call, rounds, seconds, True)
    with torch.no_grad():
        expected = _run(reference, call)
        limit = tolerance or max(_TOLERANCE.get(t.dtype, _COARSE) for t in tensors_in(expected))
        kept = {layer: reason for layer in layers if (reason := why_kept(layer)) is not None}
        inputs = capture_inputs(reference, call, [layer for layer in layers if layer not in kept])
        swaps: dict[nn.Module, nn.Module] = {}
        choices = []
        for layer, name in layers.items():
            if layer in kept:
                choices.append(Choice(name, _DENSE, kept[layer]))
                continue
            choice, module = _choose(name, layer, inputs.pop(layer), layer_timer, kernel_timer, limit)
            choices.append(choice)
            if module is not None:
                swaps[layer] = module
        if not swaps:
            return Optimized(model, Summary(tuple(choices), False, "no layer was measured to be faster"))
        fast = replace_modules(reference, swaps)
        summary = _compare(tuple(choices), reference, fast, call, expected, layer_timer, limit)
    return Optimized(fast if summary.changed else model, summary)


def _default_timer(model: nn.Module, call: ModelCall, rounds: int, seconds: float, graphs: bool) -> Timer:
    tensor = next((t for t in [*model.parameters(), *call.tensors]), None)
    return timer(torch.device("cpu") if tensor is None else tensor.device, rounds, seconds, graphs)


def _run(model: nn.Module, call: ModelCall) -> Any:
    with checked_example(*call.tensors):
        output = call(model)
    if not tensors_in(output):
        raise ConfigError(f"optimize needs a module that returns tensors, not {type(output).__name__}")
    return output


def _choose(
    name: str, layer: nn.Module, inputs: list[Tensor], layer_timer: Timer, kernel_timer: Timer, limit: float
) -> tuple[Choice, nn.Module | None]:
    found = find_replacements(layer, inputs, kernel_timer)
    if isinstance(found, str):
        return Choice(name, _DENSE, found), None
    reasons, calls = [], {_DENSE: _calls(layer, inputs)}
    for kind, module, _ in found:
        reason = _why_not(kind, module, layer, inputs, limit)
        if reason is None:
            calls[kind] = _calls(module, inputs)
        else:
            reasons.append(reason)
    if len(calls) == 1:
        return Choice(name, _DENSE, ", and ".join(reasons)), None
    times = layer_timer(calls)
    middle = {key: statistics.median(values) for key, values in times.items()}
    words = ", ".join(f"{milliseconds:.3f} ms {key}" for key, milliseconds in middle.items())
    best = min((one for one in found if one.kind in times), key=lambda one: middle[one.kind])
    if not is_faster(times[_DENSE], times[best.kind]):
        return Choice(name, _DENSE, f"{words}: not faster", middle), None
    setting = f" ({best.setting})" if best.setting else ""
    words = f"{words}: {speedup_in_words(times[_DENSE], times[best.kind])}{setting}"
    return Choice(name, best.kind, words, middle), best.module


def _why_not(kind: str, module: nn.Module, layer: nn.Module, inputs: list[Tensor], limit: float) -> str | None:
    """Return why a layer cannot take another one's place; None if it computes the same."""
    try:
        apart = max(difference(layer(x), module(x)) for x in inputs)
    except (RuntimeError, TypeError) as error:
        return f"{kind} does not run here: {first_sentence(error)}"
    return f"{kind} differs by {apart:.1e}, more than {limit:.0e}" if apart > limit else None


def _calls(layer: nn.Module, inputs: list[Tensor]) -> Call:
    def call() -> object:
        return [layer(x) for x in inputs]

    return call


def _compare(
    choices: tuple[Choice, ...],
    reference: nn.Module,
    fast: nn.Module,
    call: ModelCall,
    expected: Any,
    layer_timer: Timer,
    limit: float,
) -> Summary:
    """Compare the whole copy with the whole model."""
    try:
        apart = difference(expected, call(fast))
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        return Summary(choices, False, f"with the faster layers it does not run: {first_sentence(error)}")
    if apart > limit:
        return Summary(choices, False, f"outputs differ by {apart:.1e}, more than {limit:.0e}", difference=apart)
    times: Mapping[str, Any] = layer_timer({"before": lambda: call(reference), "after": lambda: call(fast)})
    before, after = (statistics.median(times[key]) for key in ("before", "after"))
    words = f"{before:.3f} ms before, {after:.3f} ms after"
    faster = is_faster(times["before"], times["after"])
    verdict = speedup_in_words(times["before"], times["after"]) if faster else "not faster as a whole"
    reason = f"{words}: {verdict}, outputs " + (f"within {apart:.0e}" if apart else "equal")
    return Summary(choices, faster, reason, before, after, apart)


def difference(expected: Any, got: Any) -> float:
    """Return the largest difference of an element, relative to the largest element of its tensor; inf if shapes differ."""
    ours, others = tensors_in(expected), tensors_in(got)
    pairs = list(zip(ours, others, strict=False))
    if len(ours) != len(others) or any(a.shape != b.shape for a, b in pairs):
        return float("inf")
    return max((_difference(a, b) for a, b in pairs if a.numel()), default=0.0)


def _difference(expected: Tensor, got: Tensor) -> float:
    wide = torch.float64 if expected.dtype == torch.float64 else torch.float32
    apart = (expected.to(wide) - got.to(wide)).abs().max()
    largest = expected.to(wide).abs().max().clamp_min(1e-12)
    ratio = float(apart / largest)
    return ratio if ratio == ratio else float("inf")
