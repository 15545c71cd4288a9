"""`optimize`: the same network, faster where a measurement says so, and an account of what was chosen and why."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from paretorch.deploy.fast.candidates import candidate, is_layer
from paretorch.deploy.fast.capture import capture, difference, replaced, tensors_of
from paretorch.deploy.fast.choices import Account, Choice
from paretorch.deploy.fast.measure import Call, Timer, is_faster, speedup, timer
from paretorch.deploy.plain import copied
from paretorch.errors import ConfigError
from paretorch.support.eval_mode import first_sentence, trying

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
_COARSE = 2e-2  # bf16 and fp16: a few units in the last place
_DENSE = "dense"


class Optimized(NamedTuple):
    """`model, account = optimize(…)`: a plain module, and what to print."""

    model: nn.Module
    account: Account


def optimize(
    model: nn.Module,
    example: Tensor | tuple[Any, ...],
    *,
    tolerance: float | None = None,
    rounds: int = 7,
    seconds: float = 0.03,
    graphs: bool = False,
    timer: Timer | None = None,
) -> Optimized:
    """A copy of the model, in eval mode, with faster layers where they were measured to be faster; or the model itself.

    Every candidate is timed against the dense layer on the inputs that the example gives it, in turns, `rounds` times
    `seconds`; then the whole copy against the whole model. Where that is not faster, or an output differs by more than
    `tolerance` times the largest (1e-4 for float32, 2e-2 for bf16), the model itself comes back, and the account says why.
    The choice holds for the device, the dtype, the number of threads and about the batch of the example.
    graphs: on a GPU, time calls as they run when replayed from CUDA graphs, without what Python costs.
    timer: measures in place of the clock; named calls to milliseconds, one for each round.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"optimize takes a module, not {type(model).__name__}")
    arguments = example if isinstance(example, tuple) else (example,)
    if not tensors_of(arguments):
        raise ConfigError(
            "example: give a batch of inputs as it will come, a tensor or a tuple of the model's arguments"
        )
    if rounds < 1 or seconds <= 0:
        raise ConfigError(f"rounds must be at least 1 and seconds above 0, not {rounds} and {seconds}")
    if tolerance is not None and not tolerance > 0:
        raise ConfigError(
            f"tolerance={tolerance!r}: give the largest difference to accept, relative to the largest output"
        )
    reference = copied(model, "optimize")
    layers = {module: name for name, module in reference.named_modules() if is_layer(module)}
    timed = timer or _default_timer(reference, arguments, rounds, seconds, graphs)
    # Settings of one kernel differ by less than Python takes to launch it.
    fine = timer or _default_timer(reference, arguments, rounds, seconds, True)
    with torch.no_grad():
        expected = _run(reference, arguments)
        limit = tolerance or max(_TOLERANCE.get(t.dtype, _COARSE) for t in tensors_of(expected))
        inputs = capture(reference, arguments, layers)
        swaps: dict[nn.Module, nn.Module] = {}
        choices = []
        for layer, name in layers.items():
            choice, module = _choose(name, layer, inputs.pop(layer), timed, fine, limit)
            choices.append(choice)
            if module is not None:
                swaps[layer] = module
        if not swaps:
            return Optimized(model, Account(tuple(choices), False, "no layer was measured to be faster"))
        fast = replaced(reference, swaps)
        account = _compare(tuple(choices), reference, fast, arguments, expected, timed, limit)
    return Optimized(fast if account.changed else model, account)


def _default_timer(model: nn.Module, arguments: tuple[Any, ...], rounds: int, seconds: float, graphs: bool) -> Timer:
    tensor = next((t for t in [*model.parameters(), *tensors_of(arguments)]), None)
    return timer(torch.device("cpu") if tensor is None else tensor.device, rounds, seconds, graphs)


def _run(model: nn.Module, arguments: tuple[Any, ...]) -> Any:
    with trying(*tensors_of(arguments)):
        output = model(*arguments)
    if not tensors_of(output):
        raise ConfigError(f"optimize needs a module that returns tensors, not {type(output).__name__}")
    return output


def _choose(
    name: str, layer: nn.Module, inputs: list[Tensor], timed: Timer, fine: Timer, limit: float
) -> tuple[Choice, nn.Module | None]:
    found = candidate(layer, inputs, fine)
    if isinstance(found, str):
        return Choice(name, _DENSE, found), None
    kind, module, how = found
    try:
        apart = max(difference(layer(x), module(x)) for x in inputs)
    except (RuntimeError, TypeError) as error:
        return Choice(name, _DENSE, f"{kind} does not run here: {first_sentence(error)}"), None
    if apart > limit:
        return Choice(name, _DENSE, f"{kind} differs by {apart:.1e}, more than {limit:.0e}"), None
    times = timed({_DENSE: _calls(layer, inputs), kind: _calls(module, inputs)})
    middle = {key: statistics.median(values) for key, values in times.items()}
    ratio = speedup(times[_DENSE], times[kind])
    told = f"{middle[_DENSE]:.3f} ms dense, {middle[kind]:.3f} ms {kind}"
    if not is_faster(times[_DENSE], times[kind]):
        return Choice(name, _DENSE, f"{told}: not faster", middle), None
    told = f"{told}: {ratio:.1f} × faster" + (f" ({how})" if how else "")
    return Choice(name, kind, told, middle), module


def _calls(layer: nn.Module, inputs: list[Tensor]) -> Call:
    def call() -> object:
        return [layer(x) for x in inputs]

    return call


def _compare(
    choices: tuple[Choice, ...],
    reference: nn.Module,
    fast: nn.Module,
    arguments: tuple[Any, ...],
    expected: Any,
    timed: Timer,
    limit: float,
) -> Account:
    """The whole against the whole."""
    try:
        apart = difference(expected, fast(*arguments))
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        return Account(choices, False, f"with the faster layers it does not run: {first_sentence(error)}")
    if apart > limit:
        return Account(choices, False, f"outputs differ by {apart:.1e}, more than {limit:.0e}", difference=apart)
    times: Mapping[str, Any] = timed({"before": lambda: reference(*arguments), "after": lambda: fast(*arguments)})
    before, after = (statistics.median(times[key]) for key in ("before", "after"))
    told = f"{before:.3f} ms before, {after:.3f} ms after"
    faster = is_faster(times["before"], times["after"])
    ratio = f"{speedup(times['before'], times['after']):.1f} × faster" if faster else "not faster as a whole"
    reason = f"{told}: {ratio}, outputs " + (f"within {apart:.0e}" if apart else "equal")
    return Account(choices, faster, reason, before, after, apart)
