"""Leaving: the plain network behind the relaxations, as a state, as a list of edits, and as a module again."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paretorch.core.attach.activations import OutputSite, detach_output, edit_of, state_of
from paretorch.core.attach.sites import Site, Template
from paretorch.core.attach.templates import Mix, detach, originals
from paretorch.core.attach.weights import RelaxedWeight, write_weights
from paretorch.core.finish.byte_budget import ByteBudget, Edit
from paretorch.core.method import Term
from paretorch.core.relaxation import Chain
from paretorch.edits import EDITS, KeepChannels, Scale, edits_of
from paretorch.edits.keep_channels import channel_edits, cut_state
from paretorch.errors import ConfigError
from paretorch.support.sharded import is_sharded, whole


def earlier_edits(model: nn.Module, sites: Sequence[Site]) -> list[Edit]:
    """What plans before this one did to the model: a file starts from the network as it was built.

    Scales are about values, and those of the sites are about to change.
    """
    names = {site.name for site in sites}
    return [edit for edit in edits_of(model) if not isinstance(edit, Scale) or edit.weight not in names]


@dataclass(frozen=True)
class Attached:
    """Where a plan's relaxations sit: a chain on each weight, and one on each activation."""

    model: nn.Module
    sites: list[Site]
    chains: list[Chain]
    outputs: list[tuple[OutputSite, Chain]]

    @contextmanager
    def _without_noise(self) -> Iterator[None]:
        """Inside, the network computes with the weights of evaluation."""
        modes = [(r, r.training) for one in self.chains for r in one.relaxations()]
        noisy = [one for one in self.chains if isinstance(one, RelaxedWeight) and _has_noise(one)]
        try:
            for relaxation, _ in modes:
                relaxation.eval()
            write_weights(noisy)
            with torch.no_grad():
                yield
        finally:
            for relaxation, mode in modes:
                relaxation.train(mode)
            write_weights(noisy)

    def _effective(self, chain: Chain) -> Tensor:
        """The weight that the network computes with, whole on every rank."""
        value = whole(chain.tensor).clone() if isinstance(chain, RelaxedWeight) else chain(torch.empty(0))
        # What reads a channel that is zero is zero too: it costs nothing where such channels fill a layer up.
        read = chain.open_inputs() if chain.relaxations()[0].hard else None
        value = value if read is None else value * read.to(value.dtype)
        return value + 0.0  # no negative zeros

    def dense_state(self, order: Sequence[str]) -> dict[str, Tensor]:
        """A copy of the plain network's state, by its own keys in their own order."""
        with self._without_noise():
            plain = {
                id(one): value
                for site, chain in zip(self.sites, self.chains, strict=True)
                for value in [self._effective(chain)]
                for one in ([chain.tensor] if isinstance(chain, RelaxedWeight) else originals(site))
            }
        rest: dict[str, Tensor] = {}
        found: dict[str, Tensor] = {}
        own = set(order)
        for key, value in self.model.state_dict(keep_vars=True).items():
            if id(value) in plain and key.endswith(".original"):
                *head, _, attribute, _ = key.split(".")  # head.parametrizations.attribute.original
                found[".".join([*head, attribute])] = plain[id(value)]
            elif key in own and id(value) in plain:
                found[key] = plain[id(value)]
            elif key in own:
                # Extra state of a module may be anything.
                rest[key] = whole(value).clone() if isinstance(value, Tensor) else copy.deepcopy(value)
        if gone := [s.name for s in self.sites if not isinstance(s, Template) and s.name not in found]:
            raise ConfigError(f"{gone[0]} is no longer a weight of the model: change layers before compress, not after")
        found = {**rest, **found}
        return {key: found[key] for key in order if key in found}

    def plain_state(self, dense: dict[str, Tensor], edits: Sequence[Edit]) -> dict[str, Tensor]:
        """What is left of the dense state: dropped channels are gone, quantized activations have their own."""
        state = cut_state(dense, self.model, [edit for edit in edits if isinstance(edit, KeepChannels)])
        for site, chain in self.outputs:
            state |= state_of(site, chain)
        return state

    def edits(self, terms: Sequence[Term]) -> list[Edit]:
        """What the file must say beside the values: channels that are gone, quantized activations, scales of grids."""
        cut = [term for term in terms if term.coupling is not None]
        found: list[Edit] = [edit for term in cut for edit in channel_edits(term.kept_channels())]
        found += [edit_of(site, chain) for site, chain in self.outputs]
        for site, chain in zip(self.sites, self.chains, strict=True):
            if isinstance(site, Template):  # what is mixed from a grid lies on none
                continue
            exponents = [e for r in chain.relaxations() if (e := r.scale_exponent()) is not None]
            if sum(exponents) != 0:
                found.append(Scale(site.name, sum(exponents)))
        return found

    def check_whole(self) -> None:
        """Refuse a model of which this process holds but a part."""
        if any(is_sharded(chain.tensor) for chain in self.chains if isinstance(chain, RelaxedWeight)):
            raise ConfigError("finalize needs a whole model: load plan.dense_state_dict() into a plain copy instead")

    def detach(self, dense: dict[str, Tensor]) -> None:
        """Put plain tensors where the relaxations were."""
        for site, chain in zip(self.sites, self.chains, strict=True):
            if isinstance(site, Template):
                continue
            if isinstance(chain, RelaxedWeight):
                chain.detach(dense[site.name])
            else:
                detach(site, dense[site.name], all(r.trains for r in chain.relaxations() if isinstance(r, Mix)))

    def detach_outputs(self) -> None:
        """Put plain modules where outputs were relaxed; what is cut, such as a norm, is cut before."""
        for site, chain in self.outputs:
            detach_output(self.model, site, chain)

    def cut(self, edits: Sequence[Edit]) -> None:
        """Remove the channels that the edits name, once detached."""
        for edit in edits:
            if isinstance(edit, KeepChannels):
                edit.apply(self.model)

    def note(self, edits: Sequence[Edit]) -> None:
        """Let the model carry its edits, those of plans before this one first."""
        every = [*earlier_edits(self.model, self.sites), *edits]
        self.model.__dict__.pop(EDITS, None)
        if every:
            self.model.__dict__[EDITS] = every

    def trim(self, budget: ByteBudget, edits: list[Edit]) -> None:
        """Bring the plain network's file below its budget."""
        values: dict[int, Tensor] = {}  # by object: a tied weight stands under several names
        state = {
            key: values.setdefault(id(value), value.detach())
            for key, value in self.model.state_dict(keep_vars=True).items()
        }
        budget.trim(state, [site.name for site in self.sites if site.weight.dim() > 1], edits)
        self.model.load_state_dict(state)


def _has_noise(weight: RelaxedWeight) -> bool:
    return any(r.differs_in_eval and r.training and not r.hard for r in weight.relaxations())
