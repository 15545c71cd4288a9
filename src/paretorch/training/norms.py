"""Batch norms as a run's artefact has them, while its bytes are planned and at its end.

See `paretorch.deploy.norms`: y = a x + c in place of four vectors. A byte budget must count what will be stored, not what
is trained, and a run must tell the accuracy of what is stored, not of what was trained.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from paretorch.core.finish.byte_budget import Meter
from paretorch.edits import Edit

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_VECTORS = ("weight", "bias", "running_mean", "running_var")


def folded_state(model: nn.Module, state: Mapping[str, Tensor], norms: str) -> dict[str, Tensor]:
    """A state of the model (after structural edits too) with its batch norms folded, and rounded if `norms` says so."""
    from paretorch.deploy.norms import prepared_state

    folded = dict(state)
    for module, keys in _norms(model, state):
        own = {name: state[key] for name, key in keys.items()}
        layer = nn.BatchNorm1d(len(own["weight"]), eps=module.eps, device=own["weight"].device)
        layer.load_state_dict(own, strict=False)
        stored = prepared_state(layer, _DTYPES[norms], True)
        folded |= {key: stored[name].to(own[name].dtype) for name, key in keys.items()}
    return folded


def fold_norms(model: nn.Module, norms: str) -> None:
    """Fold the batch norms of a plain network, in place: the same outputs in eval mode, up to rounding."""
    model.load_state_dict(folded_state(model, model.state_dict(), norms))


def compact_state(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state with its batch norms folded, and what it has of vectors (norms, biases, running statistics) in bfloat16 values."""
    return {
        key: value.bfloat16().float() if _takes_bytes(value) else value
        for key, value in folded_state(model, state, "fp32").items()
    }


def _takes_bytes(value: Tensor) -> bool:
    """Whether this is a vector that a file does not tell by one number, as it does the statistics of a folded norm."""
    return value.dtype == torch.float32 and value.dim() == 1 and bool((value != value[:1]).any())


@torch.no_grad()
def make_compact(model: nn.Module) -> None:
    """Do the same to a plain network, in place: the same outputs in eval mode, up to rounding."""
    model.load_state_dict(compact_state(model, model.state_dict()))


def compact_meter(model: nn.Module) -> Meter:
    """Counts the bytes of the file that a state of the model leaves once it is compact."""
    from paretorch.deploy import encoded_size

    def meter(state: Mapping[str, Tensor], edits: Sequence[Edit]) -> int:
        return encoded_size(compact_state(model, state), model, edits)

    return meter


def meter_of(model: nn.Module, norms: str | None, more: int = 0) -> Meter:
    """Counts the bytes of the file that a state of the model would leave, with so many `more` for what is said about it."""
    from paretorch.deploy import encoded_size

    def meter(state: Mapping[str, Tensor], edits: Sequence[Edit]) -> int:
        return more + encoded_size(state if norms is None else folded_state(model, state, norms), model, edits)

    return meter


def _norms(model: nn.Module, state: Mapping[str, Tensor]) -> Iterator[tuple[_BatchNorm, dict[str, str]]]:
    """Every batch norm with the keys of its four vectors, but those that share a vector: each would need its own."""
    names = Counter(id(value) for value in model.state_dict(keep_vars=True).values())
    for prefix, module in model.named_modules():
        keys = {name: f"{prefix}.{name}" if prefix else name for name in _VECTORS}
        is_whole = isinstance(module, _BatchNorm) and set(keys.values()) <= set(state)
        if is_whole and all(names[id(getattr(module, name))] == 1 for name in _VECTORS):
            yield module, keys
