"""Layers that share tensors, and so are stored once and run in a loop."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from paretorch.edits.edit import Edit, ModelInfo
from paretorch.edits.mixed import COEFFICIENTS, MixedWeight, Owner, attach, detach, mixed_weights
from paretorch.errors import ArtefactError, ConfigError


@dataclass(frozen=True)
class Share(Edit):
    """The `weights` are mixed from `count` new parameters of the root, `<bank>_0`, `<bank>_1` …

    uses: for each weight, the numbers of the parameters that it is mixed from. The values of the parameters and of the
    coefficients are in the state dict.
    """

    bank: str
    count: int
    weights: tuple[str, ...]
    uses: tuple[tuple[int, ...], ...]

    kind: ClassVar[str] = "share"
    json_fields: ClassVar[Mapping[str, type]] = {"bank": str, "count": int, "weights": list, "uses": list}

    @classmethod
    def check_json(cls, data: Mapping[str, Any]) -> None:
        count, weights, uses = data["count"], data["weights"], data["uses"]
        sound = (
            re.fullmatch(r"shared_\d{1,6}", data["bank"]) is not None
            and 0 < count <= len(weights)  # never more than the module has
            and len(weights) == len(uses)
            and all(isinstance(name, str) for name in weights)
            and len(set(weights)) == len(weights)
            and all(isinstance(own, list) and 0 < len(own) <= count for own in uses)
            and all(type(i) is int and 0 <= i < count for own in uses for i in own)
        )
        if not sound:
            raise ArtefactError("a 'share' edit is damaged")

    @property
    def stored(self) -> tuple[str, ...]:
        """The names of the shared parameters."""
        return tuple(f"{self.bank}_{i}" for i in range(self.count))

    def check(self, info: ModelInfo) -> None:
        self._weights(info.model)

    def apply(self, model: nn.Module) -> None:
        """Make the edit, in place, with zeros to be filled; nothing changes if something does not fit."""
        found = self._weights(model)
        like = found[0][0]
        trained = any(weight.requires_grad for weight, _ in found)
        for name in self.stored:
            model.register_parameter(name, nn.Parameter(torch.zeros_like(like).detach(), trained))
        for (weight, owners), own in zip(found, self.uses, strict=True):
            mixed = MixedWeight(model, [self.stored[i] for i in own], like.device)
            mixed.requires_grad_(trained).train(owners[0].module.training)
            attach(owners, mixed, weight)

    def _weights(self, model: nn.Module) -> list[tuple[nn.Parameter, list[Owner]]]:
        """Each weight with its owners."""
        known = _weights_by_name(model)
        if missing := [name for name in self.weights if name not in known]:
            module, _, attribute = missing[0].rpartition(".")
            if f"{module}.parametrizations.{attribute}.0.{COEFFICIENTS}".lstrip(".") in model.state_dict():
                raise ConfigError(f"{missing[0]} is shared already: give the network as it was before it was folded")
            raise ConfigError(f"there is no weight {missing[0]} to share")
        found = [known[name] for name in self.weights]
        like = found[0][0]
        if any(weight.shape != like.shape or weight.dtype != like.dtype for weight, _ in found):
            raise ConfigError(f"{self.weights[0]} and others that share are not of one shape")
        if any(hasattr(model, name) for name in self.stored):
            raise ConfigError(f"the network has a {self.bank}_0 already")
        return found


def _weights_by_name(model: nn.Module) -> dict[str, tuple[nn.Parameter, list[Owner]]]:
    """Every parameter of two or more dimensions with its owners, by its first name."""
    owners: dict[int, list[Owner]] = {}
    found: dict[str, tuple[nn.Parameter, list[Owner]]] = {}
    for path, module in model.named_modules():
        for attribute, weight in module._parameters.items():
            if weight is None or weight.dim() < 2 or not weight.numel():
                continue
            if not (weight.is_floating_point() or weight.is_complex()):
                continue
            if id(weight) not in owners:
                own = owners.setdefault(id(weight), [])
                found[f"{path}.{attribute}" if path else attribute] = (weight, own)
            owners[id(weight)].append(Owner(module, attribute))
    return found


def unshare(root: nn.Module) -> None:
    """Undo all `Share` edits of a network: weights are their own again, and the shared parameters are gone."""
    owners: dict[MixedWeight, list[Owner]] = {}
    for module in root.modules():
        for attribute, mixed in mixed_weights(module):
            owners.setdefault(mixed, []).append(Owner(module, attribute))
    with torch.no_grad():
        values = {mixed: nn.Parameter(mixed().clone(), mixed.trains) for mixed in owners}
    for mixed, own in owners.items():
        detach(own, values[mixed])
    for name in {name for mixed in owners for name in mixed.names}:
        delattr(root, name)
