"""Looking at a model from outside: run in eval mode, with hooks, without leaving a trace."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from paretorch.errors import ConfigError, PareError
from paretorch.support.inputs import ModelCall

Hook = Callable[[nn.Module, Any, Any], None]


@contextmanager
def in_eval(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in eval mode and nothing has a gradient; afterwards every module is in its own mode again."""
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def watched(model: nn.Module, hooks: Mapping[nn.Module, Hook]) -> Iterator[None]:
    """As `in_eval`, with a hook on each of these modules' outputs; inputs given by name are among the others, in their place."""
    handles = [module.register_forward_hook(_in_order(hook), with_kwargs=True) for module, hook in hooks.items()]
    try:
        with in_eval(model):
            yield
    finally:
        for handle in handles:
            handle.remove()


def _in_order(hook: Hook) -> Callable[[nn.Module, Any, Any, Any], None]:
    def called(module: nn.Module, inputs: Any, named: Any, output: Any) -> None:
        hook(module, inspect.signature(module.forward).bind(*inputs, **named).args if named else inputs, output)

    return called


def doubles(model: nn.Module) -> dict[str, str]:
    """Every name of a module that has several, with another of them."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    return {one: own[0] if one != own[0] else own[1] for own in names.values() if len(own) > 1 for one in own}


def run_example(model: nn.Module, example: Tensor | ModelCall) -> Any:
    """Run the model on an example, on the model's device; one that does not run is the caller's mistake."""
    call = example if isinstance(example, ModelCall) else ModelCall((example,))
    parameter = next(model.parameters(), None)
    with trying(*call.tensors):
        return call.to(None if parameter is None else parameter.device)(model)


@contextmanager
def trying(*examples: Tensor) -> Iterator[None]:
    """Inside, a caller's model runs on these: what its forward pass raises is told as a mistake of the caller."""
    try:
        yield
    except PareError:
        raise
    except Exception as error:  # what a forward pass raises is not ours to list
        shapes = ", ".join(str(tuple(example.shape)) for example in examples)
        raise ConfigError(f"the example of shape {shapes} does not run: {first_sentence(error)}") from error


def first_sentence(error: BaseException) -> str:
    """What an error says first: torch's can be pages long. One that says nothing, or a key alone, is told by its kind."""
    said = (str(error).strip().splitlines() or [""])[0].split(". ")[0]
    kind = type(error).__name__
    return kind if not said else f"{kind}: {said}" if isinstance(error, KeyError) else said
