"""What `compress` refuses before it looks at a weight: arguments and models that cannot work, each with what would be right."""

from torch import Tensor, nn
from torch.nn.utils import parametrize

from paretorch.core.attach.weights import RelaxedWeight
from paretorch.core.method import Method
from paretorch.core.relaxation import PREFIX, Chain
from paretorch.edits.share import MixedWeight
from paretorch.errors import ConfigError
from paretorch.support.arithmetic import all_finite
from paretorch.support.checks import require_count
from paretorch.support.sharded import is_sharded


def check_arguments(model: nn.Module, methods: tuple[Method, ...], steps: int, budget: int | None, seed: int) -> None:
    """Raise for arguments of `compress` that cannot work."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"compress takes a module first, not {type(model).__name__}")
    if not methods:
        raise ConfigError(
            "compress needs at least one method, such as ContinuousSparsification(target=0.9) or SMOL(target_bits=2.0)"
        )
    for method in methods:
        if not isinstance(method, Method):
            raise ConfigError(f"{method!r} is no method: pass objects such as ContinuousSparsification(target=0.9)")
        method.check()
    kinds = [method.kind for method in methods]
    if len(set(kinds)) < len(kinds):
        raise ConfigError(
            "two methods of one kind cannot act on one model: give one of them, with overrides for the layers that differ"
        )
    hint = "give the number of optimizer steps until harden, such as epochs * len(loader)"
    require_count("steps", steps, 1, hint)
    require_count("seed", seed, 0, "give a whole number, 0 or more")
    if budget is not None:
        require_count("budget", budget, 1, "give the bytes of the file, such as 48_000")
    _check_model(model)


def _check_model(model: nn.Module) -> None:
    if hasattr(model, "_orig_mod") or isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        raise ConfigError(
            f"the model is in a {type(model).__name__} already: compress the model itself first, then wrap it"
        )
    for name, module in model.named_modules():
        if isinstance(module, RelaxedWeight):
            raise ConfigError(
                f"{module.name} has a plan already: pass all methods to one compress, or finalize the old plan first"
            )
        if parametrize.is_parametrized(module):
            if not any(isinstance(inner, Chain | MixedWeight) for inner in module.modules()):
                raise ConfigError(
                    f"{name or 'the model'} has a parametrization of its own, such as a weight norm: make its weights plain "
                    "by torch.nn.utils.parametrize.remove_parametrizations before compress"
                )
            if any(isinstance(inner, MixedWeight) for inner in module.modules()):
                raise ConfigError(
                    "the network is folded: give SoftSharing and the other methods to one compress, and fold what is trained then"
                )
            raise ConfigError(
                f"{name or 'the model'} is parametrized already: pass all methods to one compress, or finalize the old plan first"
            )
    if taken := [name for name in (*model._buffers, *model._parameters, *model._modules) if name.startswith(PREFIX)]:
        raise ConfigError(f"the model has {taken[0]!r}: names that begin with {PREFIX!r} are the plan's, so rename it")
    if any(p.is_meta for p in model.parameters()):
        raise ConfigError("the model has no values yet (meta device): load or initialize its weights before compress")
    if any(is_sharded(p.data) for p in model.parameters()):
        raise ConfigError("the model is sharded already: compress first, then fully_shard")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            raise ConfigError(f"{name} is not initialized yet: run one batch through the model before compress")
        if type(parameter.detach()) is not Tensor:
            raise ConfigError(
                f"{name} is a {type(parameter.detach()).__name__}, as after torchao's quantize_: compress plain tensors, and call it "
                "after finalize"
            )
        if parameter.is_floating_point() and not all_finite(parameter):
            raise ConfigError(f"{name} has values that are not finite: load or initialize its weights before compress")
