"""Running a model in eval mode, with hooks or on an example, without changing it."""

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
    """Put the model into eval mode without gradients; on exit every module returns to its own mode."""
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
    """As `in_eval`, with a hook on each of these modules. A hook gets keyword arguments as positional ones, in their order."""
    handles = [module.register_forward_hook(_with_positions(hook), with_kwargs=True) for module, hook in hooks.items()]
    try:
        with in_eval(model):
            yield
    finally:
        for handle in handles:
            handle.remove()


def _with_positions(hook: Hook) -> Callable[[nn.Module, Any, Any, Any], None]:
    def called(module: nn.Module, inputs: Any, named: Any, output: Any) -> None:
        hook(module, inspect.signature(module.forward).bind(*inputs, **named).args if named else inputs, output)

    return called


def doubles(model: nn.Module) -> dict[str, str]:
    """Return, for every name of a module that has several names, another name of it."""
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    return {one: own[0] if one != own[0] else own[1] for own in names.values() if len(own) > 1 for one in own}


def run_example(model: nn.Module, example: Tensor | ModelCall) -> Any:
    """Run the model on an example, on the model's device; raise `ConfigError` if it does not run."""
    call = example if isinstance(example, ModelCall) else ModelCall((example,))
    parameter = next(model.parameters(), None)
    with checked_example(*call.tensors):
        return call.to(None if parameter is None else parameter.device)(model)


@contextmanager
def checked_example(*examples: Tensor) -> Iterator[None]:
    """Turn what a user's model raises on these tensors into a `ConfigError` of one sentence."""
    try:
        yield
    except PareError:
        raise
    except Exception as error:  # a forward pass may raise anything
        shapes = ", ".join(str(tuple(example.shape)) for example in examples)
        raise ConfigError(f"The example of shape {shapes} does not run: {first_sentence(error)}") from error


def first_sentence(error: BaseException) -> str:
    """Return the first sentence of an error, as torch's can be pages long; with its type if it is empty or a key alone."""
    said = (str(error).strip().splitlines() or [""])[0].split(". ")[0]
    kind = type(error).__name__
    return kind if not said else f"{kind}: {said}" if isinstance(error, KeyError) else said
