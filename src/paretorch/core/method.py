"""What a method is: a frozen record of its options, and the few moments of its life that differ from the others'.

The life (attach, price, step, harden, finalize) is the plan's. A method says how one weight is relaxed (`relax`),
how its schedules run (`schedule`), how it keeps to its target (`steer`, `round`), and what to log (`measure`).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, Self, cast

import torch
from torch import Tensor, nn

from paretorch.core.attach.sites import Selection, Site
from paretorch.core.attach.templates import Mixture
from paretorch.core.attach.weights import RelaxedWeight
from paretorch.core.channels.coupling import Channels, Coupling
from paretorch.core.channels.shares import LATENCY
from paretorch.core.groups import Grouping
from paretorch.core.relaxation import PREFIX, Chain, Relaxation, scalars_of
from paretorch.core.rounding import keep_best
from paretorch.errors import ConfigError
from paretorch.support.sharded import total, whole

OptimizerFactory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, kw_only=True)
class Method(Selection, ABC):
    """Options that every method has.

    group: what shares one decision: "weight", "channel", "layer", "network", a block shape, or a callable.
    include, exclude: name patterns, module types, predicates `(name, module) -> bool`, or lists of these.
    overrides: options that differ for some layers: `{"fc*": {"group": "channel"}}`; the last match wins.
    optimizer: builds the optimizer of the decisions from a list of parameters; None: the method's own.
    """

    optimizer: OptimizerFactory | None = None

    order: ClassVar[int]  # innermost first: sharing 0, precision 1, sparsity 2
    scalars: ClassVar[tuple[str, ...]] = ()
    before: ClassVar[Mapping[str, Any]] = {}  # options that older states lack, and what these had in their place

    def check(self) -> None:
        """Refuse options that cannot work, before anything is touched."""
        super().check()
        if self.optimizer is not None and not callable(self.optimizer):
            raise ConfigError("optimizer: give a function that takes a list of parameters and returns an optimizer")

    @abstractmethod
    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> Relaxation:
        """The relaxation of one weight; `together` names all kinds that act on it."""

    def decisions_optimizer(self, parameters: list[nn.Parameter], steps: int) -> torch.optim.Optimizer | None:
        """The method's own optimizer for decisions; None: they are not trained."""
        return None

    @abstractmethod
    def schedule(self, term: "Term", step: Tensor) -> None:
        """Write the schedule values of this step into the term's scalars; device operations only."""

    @property
    def trains_decisions(self) -> bool:
        """Whether the decisions are trained, rather than written by a schedule."""
        return self.optimizer is not None or type(self).decisions_optimizer is not Method.decisions_optimizer

    def price(self, term: "Term") -> Tensor | None:
        """λ, the price of one unit (a kept weight, a bit) now; None: this method puts no price on anything."""
        return None

    @abstractmethod
    def round(self, term: "Term", factor: float) -> None:
        """Write discrete decisions into the decisions, exactly on `factor` times the target; the plan then sets `hard`."""

    @property
    def share(self) -> float | None:
        """Units a weight that the target names; None: there is no target."""
        return None

    @property
    def codes_zeros(self) -> bool:
        """Whether zero is one of the values that bits tell apart, so that a mask beside it costs nothing."""
        return False

    @abstractmethod
    def with_target(self, share: float) -> Self:
        """These options with a target of `share` units per weight, unless they have a target already."""

    @abstractmethod
    def measure(self, term: "Term") -> dict[str, Tensor]:
        """What to log: 0-dim tensors by name."""


class Automatic(ABC):
    """For methods with options that are left to the library ("auto")."""

    @abstractmethod
    def resolve_auto(self, model: nn.Module, sites: Sequence[Site]) -> Self:
        """Return these options, with those that are left to the library chosen for this model and these of its weights."""


class Recordable(ABC):
    """For methods whose schedules and feedback can be replayed from a recording on a GPU."""

    @abstractmethod
    def recording(self, term: "Term") -> Hashable | None:
        """Name the steps whose `schedule` and `steer` launch the same operations as this one; None: there are none."""


class Steered:
    """For methods with a target: feedback leads there, and what cannot be reached is refused or warned of."""

    @property
    def is_steered(self) -> bool:
        """Whether feedback moves the price: such a price is a control signal, not a cost that others should pay."""
        return False

    def steer(self, term: "Term", step: Tensor) -> None:
        """Feedback towards the target after each update; device operations only."""

    def undecided(self, term: "Term") -> Tensor | None:
        """How far the decisions are from discrete ones, on average over the weights, from 0 to ½; None: not at all."""
        return None

    def check_goal(self) -> None:
        """Refuse options by which nothing says how much goes; asked after all other checks, if there is no budget."""

    def check_groups(self, smallest: float, total: float) -> None:
        """Refuse a target that leaves less than one group; sizes are in weights."""

    def check_beside(self, kinds: set[str]) -> None:
        """Refuse a target that cannot be reached beside the methods of these kinds."""

    def warn_missed_target(self, term: "Term") -> None:
        """Warn if rounding came out far from the target, since groups go or stay whole."""


class Couples:
    """For methods that remove channels: with group="channel" and an example, coupled channels share one decision."""

    @property
    def counts(self) -> str:
        """What a target is a share of: "weights", "macs" or, if layers were measured, "latency"."""
        return "weights"

    @property
    def block(self) -> int:
        """Layers keep a multiple of so many channels."""
        return 1

    def check_coupling(self, coupling: Coupling) -> None:
        """Refuse a target that these channels cannot meet."""

    def with_latency(self, share: float) -> Self:
        """These options with a target of `share` of the measured time of the layers."""
        raise ConfigError(
            f'latency= needs ContinuousSparsification(group="channel"): {type(self).__name__} counts weights alone'
        )

    @property
    def weighs_prices(self) -> bool:
        """Whether a channel's decision learns per unit of time that the channel saves."""
        return False


class Shares(ABC):
    """For methods that make weights mixtures of templates."""

    @abstractmethod
    def mix(self, root: nn.Module, sites: Sequence[Site], seed: int) -> list[Mixture]:
        """Groups of the chosen weights that become mixtures of templates."""

    def reward(self, term: "Term") -> Tensor | None:
        """A price of the coefficients among each other; None: there is none."""
        return None

    def reward_slopes(self, term: "Term") -> list[Tensor] | None:
        """Its gradient, in closed form, one per relaxation."""
        return None


class Sample(Protocol):
    """Decisions at a sample of the weights, which is what feedback is computed from; `paretorch.core.step.sample` draws it."""

    share: Tensor  # what each of them stands for; sums to 1
    is_whole: bool  # every weight is in it

    def read(self, kind: str, step: Tensor, count: int | None) -> Tensor:
        """A kind's decision at each weight that is sampled at this step; count: the step as a number, if the host knows it."""

    def noise(self, share: Tensor) -> Tensor:
        """The standard deviation of a share that is counted on this sample."""


Sampler = Callable[[list[Chain], tuple[str, ...], torch.device], Sample]


class Part(NamedTuple):
    """Some rows of a weight: θ, the relaxation of a term, and all relaxations."""

    rows: slice
    latent: Tensor
    relaxation: Relaxation
    chain: Chain


@dataclass(eq=False)
class Term:
    """A method at work in a plan: its relaxations, in the order of the weights."""

    method: Method
    root: nn.Module
    steps: int
    sites: list[Site]
    relaxations: list[Relaxation]
    chains: list[Chain]
    coupling: Coupling | None
    sampler: Sampler
    optimizer: torch.optim.Optimizer | None = None
    trained: list[nn.Parameter] = field(default_factory=list)  # the decisions that it was made for
    place: torch.device | None = None  # where they were then
    weights: int = 0
    _sample: Sample | None = None
    count: int | None = None  # the steps taken, if the host knows
    _version: int = -1

    def add(self, site: Site, relaxation: Relaxation, chain: Chain) -> None:
        """Take one more weight under this method."""
        self.sites.append(site)
        self.relaxations.append(relaxation)
        self.chains.append(chain)
        self.weights += math.prod(relaxation.grouping.shape)

    @property
    def counted(self) -> int:
        """How many weights a target is a share of: where whole channels go, the vectors that go with them are not counted."""
        return self.weights if self.coupling is None else self.coupling.weights

    @property
    def is_on_weights(self) -> bool:
        """Whether the decisions act on weights of their own, whose gradients the engine computes."""
        return all(isinstance(chain, RelaxedWeight) for chain in self.chains)

    def latent(self, index: int) -> nn.Parameter:
        """The trained values θ behind a weight."""
        return cast(RelaxedWeight, self.chains[index]).theta

    def latents(self) -> list[nn.Parameter]:
        """θ of every weight."""
        return [self.latent(index) for index in range(len(self.chains))]

    def parts(self, index: int) -> "list[Part]":
        """A weight some rows at a time, so that what is computed on the way stays small; one part if it is small."""
        cut = self.chains[index].parts_of(self.relaxations[index])
        if len(cut) == 1:
            return [self.whole(index)]
        return [Part(rows, self.latent(index).detach()[rows], r, part) for rows, r, part in cut]

    def whole(self, index: int) -> "Part":
        """All rows of a weight."""
        chain, r = self.chains[index], self.relaxations[index]
        latent = whole(self.latent(index)) if isinstance(chain, RelaxedWeight) else torch.empty(0)  # no weight: no θ
        return Part(slice(None), latent, r, chain)

    @property
    def scalars(self) -> Tensor:
        return scalars_of(self.root, self.method.kind)

    def set_scalar(self, name: str, value: Tensor | float) -> None:
        self.scalars[self.method.scalars.index(name)] = value

    def scalar(self, name: str) -> Tensor:
        return self.scalars[self.method.scalars.index(name)]

    def decisions(self) -> list[nn.Parameter]:
        """Every decision once."""
        return list({id(r.decision): r.decision for r in self.relaxations}.values())

    def groups(self) -> list[tuple[nn.Parameter, list[Relaxation], Tensor]]:
        """Every decision once, with the relaxations that read it and the number of weights behind each entry."""
        found: dict[int, tuple[nn.Parameter, list[Relaxation], Tensor]] = {}
        for r in self.relaxations:
            decision = r.decision
            own = torch.as_tensor(r.grouping.sizes, dtype=torch.float32, device=decision.device)
            own = own.expand(r.grouping.grid).reshape(decision.shape)  # one number, as large as it looks
            _, members, sizes = found.get(id(decision), (decision, [], None))
            found[id(decision)] = decision, [*members, r], own if sizes is None else sizes + own
        return list(found.values())

    def keep_best(self, scores: list[Tensor], share: float) -> list[Tensor]:
        """Keep the groups (in the order of `groups`) with the best scores: `share` of what the method counts."""
        if self.coupling is not None:
            assert isinstance(self.method, Couples)
            return [self.coupling.keep_best(scores[0], share, self.method.counts, self.method.block)]
        return keep_best(scores, [sizes for *_, sizes in self.groups()], share * self.weights)

    def kept_channels(self) -> list[tuple[str, str, Tensor]]:
        """Module, side and channels that stay, where whole channels go."""
        if self.coupling is None:
            return []
        keep = self._open_channels(self.coupling.count)
        # Those that fill a layer up are all zero, so it does not matter which they are.
        assert isinstance(self.method, Couples)
        return self.coupling.kept(self.coupling.pad(keep > 0, keep, self.method.block))

    def time_left(self) -> float:
        """The share of the measured time of the layers that is left once channels are removed."""
        assert self.coupling is not None
        assert isinstance(self.method, Couples)
        keep = self._open_channels(self.coupling.count).to(self.relaxations[0].decision.device)
        return float(self.coupling.share(keep, LATENCY, self.method.block))

    def _open_channels(self, count: int) -> Tensor:
        """Which channels rounding keeps, as 0 and 1."""
        keep = torch.ones(count + 1, dtype=torch.float32)  # the last: rows without a decision
        for r in self.relaxations:
            assert isinstance(r.grouping, Channels)
            rows = r.survives(r.grid(whole(r.decision)))
            assert rows is not None
            keep[r.grouping.index.cpu()] = rows.flatten().cpu()
        return keep[:-1]

    @property
    def time_prices(self) -> Tensor | None:
        """The time that each channel takes, 1 on average, if the method compares channels by it."""
        weighs = self.coupling is not None and isinstance(self.method, Couples) and self.method.weighs_prices
        return self.coupling.prices if weighs and self.coupling is not None else None

    @property
    def loses_channels(self) -> bool:
        """Whether some of these weights read channels that may be removed."""
        return any(chain.loses_inputs for chain in self.chains)

    def prepare(self, version: int) -> None:
        """Have a sample of the weights to steer by, made afresh when the engine's batches were, since layouts may differ."""
        if self.coupling is not None:
            self.coupling.to(self.relaxations[0].decision.device)
            return
        if self._version != version:
            kinds = tuple(dict.fromkeys(r.kind for chain in self.chains for r in chain.relaxations()))
            self._version, self._sample = version, self.sampler(self.chains, kinds, self.relaxations[0].decision.device)

    @property
    def sample(self) -> Sample:
        assert self._sample is not None
        return self._sample

    def read(self, kind: str) -> Tensor:
        """A kind's decisions at the weights that are sampled at this step."""
        step: Tensor = getattr(self.root, f"{PREFIX}step")
        # Not asked if there is no count: a compiler cannot look at streams.
        is_recorded = self.count is not None and step.is_cuda and torch.cuda.is_current_stream_capturing()
        return self.sample.read(kind, step, None if is_recorded else self.count)

    def kept_sample(self) -> Tensor:
        """Which sampled weights all methods together would keep if they rounded now, as 0 and 1."""
        kept = torch.ones_like(self.sample.share)
        for kind, threshold in self._thresholds().items():
            kept = kept * (self.read(kind) >= threshold)
        return kept

    def _thresholds(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for chain in self.chains:
            for relaxation in chain.relaxations():
                threshold = relaxation.threshold()
                if threshold is not None and relaxation.kind not in found:
                    found[relaxation.kind] = threshold
        return found

    def mean(self, function: Callable[[Relaxation, Tensor], Tensor]) -> Tensor:
        """The average over all weights of a per-weight quantity given on each relaxation's grid."""
        sums = [total(lambda s, r=r: function(r, s) * r.grouping.sizes, _gridded(r)) for r in self.relaxations]  # type: ignore[misc]
        return torch.stack(sums).sum() / self.weights


def _gridded(relaxation: Relaxation) -> Tensor:
    # A block or label grid has sizes that are whole tensors: such a decision is read whole where it is sharded.
    if isinstance(relaxation.grouping.sizes, Tensor) or relaxation.s is None:
        return relaxation.grid(whole(relaxation.decision))
    return relaxation.decision.detach()
