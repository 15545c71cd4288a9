"""The one place where a network's name becomes a module, for all commands.

| name                              | the network                                                        |
|-----------------------------------|--------------------------------------------------------------------|
| resnet20                          | of the zoo                                                         |
| mine.py:build, package.mod:build  | what the user's function returns                                   |
| hf:FOLDER_OR_NAME                 | of transformers, with its weights if it has some; no code of theirs |
| timm:NAME                         | of timm                                                            |
"""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paretorch import deploy, zoo
from paretorch.errors import ConfigError, MissingExtraError, PareError
from paretorch.support.eval_mode import first_sentence
from paretorch.training.recipe import Recipe
from paretorch.zoo.user_code import call_function, load_function, names_code, words_that_allow

_NESTED = ("state_dict", "model_state_dict", "model")  # where checkpoints keep the weights
_NO_OPTIONS: Mapping[str, Any] = {}


def is_zoo(name: str) -> bool:
    """Whether the name is one of the zoo, right or wrong, and nothing from outside."""
    return not names_code(name) and not name.startswith(("hf:", "timm:"))


def build_network(
    name: str, options: Mapping[str, Any] = _NO_OPTIONS, wanted: Mapping[str, Any] = _NO_OPTIONS
) -> nn.Module:
    """Build the network of that name.

    Args:
        options: Of the builder.
        wanted: What follows from the data, such as classes; `options` go before it. A user's function gets what it has
            arguments for.
    """
    if names_code(name):
        return _from_user(name, options, wanted)
    if name.startswith("hf:"):
        return _transformers(name, options, wanted.get("classes"))
    if name.startswith("timm:"):
        return _timm(name, {**({"num_classes": wanted["classes"]} if "classes" in wanted else {}), **options})
    return zoo.build(name, **{**wanted, **options})


def trusting_words(recipe: Recipe) -> list[str]:
    """Words of `pare` that trust, in the process of a job, the code of this recipe that the user's own command line named."""
    return words_that_allow({"--network": recipe.network, "--data": recipe.data.name, "--task": recipe.task})


def load_weights(model: nn.Module, path: Path, option: str = "--weights") -> None:
    """Fill the network from an artefact, a safetensors file, or a file of torch.save, of which nothing is executed."""
    if not path.is_file():
        raise ConfigError(f"{option}: there is no file {path}; give a .safetensors, .pt or .pare file")
    if path.suffix == ".pare":
        deploy.load(path, into=model)
        return
    state, own = _read_state(path, option), model.state_dict()
    wrong = next((_misfit(name, state, own) for name in (*own, *state) if _misfit(name, state, own)), None)
    if wrong is not None:
        raise ConfigError(f"{option} {path} does not fit the network: {wrong}")
    model.load_state_dict(state)


def _misfit(name: str, state: Mapping[str, Tensor], own: Mapping[str, Any]) -> str:
    """What is wrong with one key; empty if nothing is."""
    if name not in state:
        return f"it has no {name}"
    if name not in own:
        return f"it has {name}, which the network does not"
    ours = own[name]
    if isinstance(ours, Tensor) and ours.shape != state[name].shape:
        return f"{name} is {tuple(state[name].shape)} there and {tuple(ours.shape)} in the network"
    return ""


def _read_state(path: Path, option: str) -> Mapping[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what a foreign file makes of the unpickler is not ours to list
        raise PareError(f"{option} {path} cannot be read as weights: {first_sentence(error)}") from error
    while isinstance(found, Mapping) and (inner := next((key for key in _NESTED if key in found), None)) is not None:
        found = found[inner]
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ConfigError(f"{option} {path} holds no state dict: save model.state_dict()")
    return found


def _from_user(name: str, options: Mapping[str, Any], wanted: Mapping[str, Any]) -> nn.Module:
    try:
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(load_function(name, "--network")).parameters
    except (TypeError, ValueError):  # a callable that does not say
        parameters = {}
    open_ended = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    if unknown := [option for option in options if parameters and not open_ended and option not in parameters]:
        has = ", ".join(parameters)
        raise ConfigError(f"--network-options: {name} has no argument {unknown[0]!r}; it has: {has}")
    suited = {option: value for option, value in wanted.items() if option in parameters}
    built = call_function(name, "--network", **{**suited, **options})
    if not isinstance(built, nn.Module):
        raise ConfigError(f"--network {name} returns {type(built).__name__}, not a module")
    return built


def _transformers(name: str, options: Mapping[str, Any], classes: int | None) -> nn.Module:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError(f"{name} needs transformers: pip install paretorch[transformers]") from error
    place = name.removeprefix("hf:")
    try:
        # trust_remote_code stays off: a folder's own code is never run.
        config = transformers.AutoConfig.from_pretrained(place, **options)
        kinds = [getattr(transformers, one, None) for one in (config.architectures or ())]
        known = (one for one in kinds if isinstance(one, type) and issubclass(one, nn.Module))
        kind: Any = next(known, None) or transformers.AutoModel
        folder = Path(place)
        if folder.is_dir() and not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
            if classes is not None and "num_labels" not in options:  # trained weights have a head of their own
                config.num_labels = classes
            built = kind(config) if kind is not transformers.AutoModel else kind.from_config(config)
        else:
            built = kind.from_pretrained(place, config=config)
    except Exception as error:  # transformers and its hub raise many kinds
        raise ConfigError(f"--network {name} cannot be loaded: {first_sentence(error)}") from error
    module: nn.Module = built
    return module


def _timm(name: str, options: Mapping[str, Any]) -> nn.Module:
    try:
        import timm
    except ImportError as error:
        raise MissingExtraError(f"{name} needs timm, which needs torchvision: pip install timm") from error
    except Exception as error:  # a torchvision that was built for another torch raises a RuntimeError
        raise ConfigError(
            f"--network {name}: timm cannot be imported ({first_sentence(error)}): install the torchvision that was built for "
            f"torch {torch.__version__}"
        ) from error
    try:
        built: nn.Module = timm.create_model(name.removeprefix("timm:"), **options)
    except Exception as error:  # timm raises many kinds
        raise ConfigError(f"--network {name} cannot be built: {first_sentence(error)}") from error
    return built
