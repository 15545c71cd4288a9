"""`compress`: one verb that turns a model and some methods into a plan."""

import copy
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import partial

import torch
from torch import Tensor, nn

from paretorch.core.arguments import check_arguments
from paretorch.core.attach.activations import OutputSite, attach_output, check_output, find_output_sites, zeros_moved
from paretorch.core.attach.sites import Site, Template, choose_sites, find_sites, warn_about_zeros
from paretorch.core.attach.templates import Mix, Mixture, install, on_templates
from paretorch.core.attach.weights import RelaxedWeight
from paretorch.core.channels.couple import couple
from paretorch.core.channels.coupling import Channels, Coupling
from paretorch.core.channels.shares import LATENCY
from paretorch.core.finish.byte_budget import ByteBudget, Edit, Finish, Meter, assign_targets
from paretorch.core.finish.finalize import earlier_edits
from paretorch.core.finish.latency_budget import (
    LatencyBudget,
    Stopwatch,
    likely_share,
    plan_latency,
    require_cuts,
    with_latency,
)
from paretorch.core.groups import grouping
from paretorch.core.method import Automatic, Couples, Method, Shares, Steered, Term
from paretorch.core.plan import Plan
from paretorch.core.relaxation import PREFIX, Chain, Relaxation
from paretorch.core.state import PlanState
from paretorch.core.step.noise import seed_for
from paretorch.core.step.sample import Sample
from paretorch.errors import ConfigError, warn
from paretorch.support.inputs import Example, read_example


def compress(
    model: nn.Module,
    *methods: Method,
    steps: int,
    example: Example | None = None,
    budget: int | None = None,
    seed: int = 0,
    compile: bool = False,
    meter: Meter | None = None,
    finish: Finish | None = None,
    latency: float | None = None,
    stopwatch: Stopwatch | None = None,
) -> Plan:
    """Attach the methods to the model's weights and return the plan that trains, rounds and removes them.

    In five passes, of which only the last touches the model: choose the weights that each method acts on; set targets, giving them
    to methods that have none from the budget; group what shares one decision across layers (coupled channels, templates);
    relax each weight; attach.

    Args:
        steps: Optimizer steps until `harden`.
        example: A batch of inputs, if channels are to be removed (`group="channel"`) or activations are quantized: a tensor, a
            tuple of the model's arguments, or a dict of keyword arguments.
        budget: Bytes of the saved file, kept at `finalize`.
        seed: Of the noise.
        compile: Whether to compile schedules and feedback (see `Plan.compile`).
        meter: Counts the bytes of a state.
        finish: What `finalize` does to the plain network in the end, which the meter counts already.
        latency: Milliseconds of the network, kept at `harden` by removing channels.
        stopwatch: Measures them.

    Load pretrained weights before; wrap in DDP, FSDP2, compile or an average after.
    """
    check_arguments(model, methods, steps, budget, seed)
    draft = _Draft(model, methods, steps, example, budget, seed, meter, finish, latency, stopwatch)
    draft.prepare()
    # Nothing was touched so far: whatever is wrong with the options has been said by now.
    if budget is not None and not draft.can_be_empty():
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
            again = copy.deepcopy(model)
            trial = _Draft(again, methods, steps, example, budget, seed, meter, finish, latency, stopwatch)
            trial.prepare()
            trial.attach().check_budget()
    if budget is None:
        for method in methods:
            if isinstance(method, Steered) and not (latency is not None and _removes(method, example)):
                method.check_goal()
    plan = draft.attach()
    if compile:
        plan.compile()
    return plan


@dataclass
class _Draft:
    """A plan in the making: each pass fills in what the next ones read."""

    model: nn.Module
    methods: tuple[Method, ...]
    steps: int
    example: Example | None
    budget: int | None
    seed: int
    meter: Meter | None
    finish: Finish | None
    latency: float | None = None
    stopwatch: Stopwatch | None = None
    # Of `choose`: all tensors that a decision can sit on, and those that each method acts on, by its kind.
    every: list[Site] = field(default_factory=list)
    chosen: dict[str, list[Site]] = field(default_factory=dict)
    # Of `set_targets`: the methods on weights, with targets.
    targeted: tuple[Method, ...] = ()
    # Of `group`.
    outputs: list[tuple[OutputSite, Chain]] = field(default_factory=list)
    couplings: dict[str, Coupling | None] = field(default_factory=dict)
    timing: LatencyBudget | None = None
    mixtures: list[Mixture] = field(default_factory=list)
    # Of `relax`: the weights that get relaxations, and these.
    touched: list[Site] = field(default_factory=list)
    made: list[list[Relaxation]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.on_outputs = tuple(method for method in self.methods if method.on_activations)
        self.on_weights = tuple(method for method in self.methods if not method.on_activations)

    def prepare(self) -> None:
        """All passes that leave the model as it is."""
        self.choose()
        self.set_targets()
        self.group()
        self.relax()

    def can_be_empty(self) -> bool:
        """Whether each weight can be zero: then no budget is out of reach that leaves room for what is not compressed."""
        light = [
            method
            for method in self.targeted
            if method.codes_zeros or (method.unit == "kept" and self.couplings[method.kind] is None)
        ]
        names = {site.name for method in light for site in self.chosen[method.kind]}
        return all(site.name in names for site in self.touched)

    def choose(self) -> None:
        """The weights that each method acts on."""
        named = find_sites(self.model, dims=0)
        self.every = [site for site in named if site.weight.dim() > 0]
        sites = [site for site in self.every if site.weight.dim() > 1]
        self.chosen = {method.kind: choose_sites(method, sites, named) for method in self.on_weights}

    def set_targets(self) -> None:
        """Targets for methods that have none, from the budget."""
        self.targeted = self.on_weights
        if self.latency is not None and self.stopwatch is not None:
            require_cuts(self.on_weights, self.example is not None)
            self.targeted = with_latency(self.targeted, likely_share(self.stopwatch, self.latency))
        if self.budget is not None and not self.on_weights:
            raise ConfigError("budget= counts the bytes of the weights: give a method that acts on weights too")
        if self.meter is not None:
            before = earlier_edits(self.model, [site for own in self.chosen.values() for site in own])
            self.meter = partial(_after, self.meter, before)
        if self.budget is not None and self.meter is not None:
            self.targeted = assign_targets(self.targeted, self.model, self.chosen, self.budget, self.meter)
        self.targeted = tuple(
            method.resolve_auto(self.model, self.chosen[method.kind]) if isinstance(method, Automatic) else method
            for method in self.targeted
        )
        for method in self.targeted:
            if isinstance(method, Steered):
                method.check_beside({one.kind for one in self.targeted})

    def _budget_behind(self, method: Method) -> int | None:
        """The budget that a method's target comes from; None: the user gave it."""
        given = next(one for one in self.on_weights if one.kind == method.kind)
        return None if method.share == given.share else self.budget

    def group(self) -> None:
        """Activations, coupled channels and templates: what shares one decision across layers."""
        cut = any(_removes(method, self.example) for method in self.targeted)
        for method in self.targeted:
            if isinstance(method, Couples) and method.group == "channel" and self.example is None:
                warn(
                    f'{type(method).__name__}(group="channel") sets channels to zero and removes none, so that no layer gets smaller or '
                    "faster: give example=, a batch of inputs"
                )
        self.outputs = _relax_outputs(self.on_outputs, self.model, self.example, self.seed, cut=cut)
        for method in self.targeted:
            with _name_budget(self._budget_behind(method)):
                own = _couple(method, self.model, self.chosen[method.kind], self.example, self.outputs)
                self.couplings[method.kind] = own
            self._time(method, own)
        for kind, coupling in self.couplings.items():
            if coupling is not None:
                self.chosen[kind] = [site for site in self.every if site.name in coupling.gates]
        sharing = [method for method in self.targeted if isinstance(method, Shares)]
        self.mixtures = [one for m in sharing for one in m.mix(self.model, self.chosen[m.kind], self.seed)]
        if self.mixtures and any(self.couplings.values()):
            raise ConfigError(
                "channels of layers that share templates cannot be removed: leave out example=, or share less"
            )
        if self.mixtures:
            self.every, self.chosen = on_templates(self.mixtures, self.every, self.chosen)

    def _time(self, method: Method, coupling: Coupling | None) -> None:
        """The target of the method that removes channels, from measured times."""
        if coupling is not None and isinstance(method, Couples) and method.counts == LATENCY and self.latency is None:
            raise ConfigError(
                'count="latency" is for compress(latency=), which measures: give that, and leave out count='
            )
        if coupling is None or self.latency is None or self.stopwatch is None or not isinstance(method, Couples):
            return
        self.timing = plan_latency(coupling, method.block, self.latency, self.stopwatch)
        self.targeted = with_latency(self.targeted, self.timing.share)

    def relax(self) -> None:
        """The relaxations of each weight."""
        acting = {
            site.name: sorted((m for m in self.targeted if site in self.chosen[m.kind]), key=lambda m: m.order)
            for site in self.every
        }
        self.touched = [site for site in self.every if acting[site.name]]
        self.made = [_relax(acting[site.name], site, self.seed, self.couplings) for site in self.touched]
        _check_starts(self.touched, self.made, acting)
        warn_about_zeros(self.touched, acting)
        for method in self.targeted:
            own = [r for relaxations in self.made for r in relaxations if r.kind == method.kind]
            if not own or self.couplings[method.kind] is not None or method.group == "network":
                continue
            if isinstance(method, Steered):
                smallest = min(float(torch.as_tensor(r.grouping.sizes).min()) for r in own)
                with _name_budget(self._budget_behind(method)):
                    method.check_groups(smallest, float(sum(math.prod(r.grouping.shape) for r in own)))

    def attach(self) -> Plan:
        """Put everything on the model."""
        ordered = tuple(
            next(m for m in (*self.targeted, *self.on_outputs) if m.kind == own.kind) for own in self.methods
        )
        device = self.outputs[0][0].device if self.outputs else next(self.model.parameters()).device
        estimated = self._estimated()
        measured = frozenset() if self.timing is None else estimated
        state = PlanState(self.model, ordered, self.steps, self.seed, device, estimated, measured)
        terms = {
            m.kind: Term(m, self.model, self.steps, [], [], [], self.couplings.get(m.kind), Sample) for m in ordered
        }
        weights = self._attach_weights(terms, state)
        sites, chains = list(self.touched), list[Chain](weights)
        by_name = {site.name: weight for site, weight in zip(self.touched, weights, strict=True)}
        for mixture in self.mixtures:
            for site, mixed in install(mixture, by_name, self.model, state.add_shared):
                (relaxation,) = mixed.relaxations()
                terms[Mix.kind].add(site, relaxation, mixed)
                sites.append(site)
                chains.append(mixed)
        for output, chain in self.outputs:
            (relaxation,) = chain.relaxations()
            _bind(relaxation, terms[relaxation.kind].method.for_site(output), state, output, trained=True)
            terms[relaxation.kind].add(output, relaxation, chain)
            chain.train(output.module.training)
            attach_output(output, chain)
        for term in terms.values():
            if term.time_prices is not None:  # decisions are logarithms of what a channel is worth per unit of its time
                decision = term.relaxations[0].decision
                decision.data.sub_(term.time_prices.log().to(decision.device))
        plan = Plan(self.model, sites, chains, list(terms.values()), state, self.outputs)
        if self.budget is not None and self.meter is not None:
            given = frozenset(method.kind for method in self.on_weights if method.share is not None)
            plan.set_budget(ByteBudget(self.budget, self.meter, given, self.finish))
        if self.timing is not None:
            plan.set_latency(self.timing)
        return plan

    def _attach_weights(self, terms: Mapping[str, Term], state: PlanState) -> list[RelaxedWeight]:
        weights = [RelaxedWeight(site, own) for site, own in zip(self.touched, self.made, strict=True)]
        for site, relaxations, weight in zip(self.touched, self.made, weights, strict=True):
            for relaxation in relaxations:
                _bind(relaxation, terms[relaxation.kind].method.for_site(site), state, site)
                terms[relaxation.kind].add(site, relaxation, weight)
            for module in weight.modules():
                module.training = site.owners[0][0].training
            if not isinstance(site, Template):
                # A grid may have no zero.
                if site.padding is not None and any(terms[r.kind].method.unit == "bits" for r in relaxations):
                    weight.blank = site.padding
                weight.attach()
        for kind, coupling in self.couplings.items():
            _set_inputs(coupling, terms[kind], self.touched, weights)
        return weights

    def _estimated(self) -> frozenset[str]:
        """Options, such as "precision.target_bits", that the budget gave."""
        return frozenset(
            f"{method.kind}.{one.name}"
            for method, given in zip(self.targeted, self.on_weights, strict=True)
            for one in fields(method)
            if getattr(method, one.name) != getattr(given, one.name)
        )


@contextmanager
def _name_budget(budget: int | None) -> Iterator[None]:
    """Say of a target that cannot be met, and that nobody gave, which budget it comes from."""
    try:
        yield
    except ConfigError as error:
        if budget is None or not str(error).startswith("target="):
            raise
        raise ConfigError(f"budget={budget} is too small, allow more bytes: it comes to {error}") from None


def _after(meter: Meter, before: Sequence[Edit], state: Mapping[str, Tensor], edits: Sequence[Edit]) -> int:
    """The bytes of a file that tells of the edits of earlier plans, too."""
    return meter(state, [*before, *edits])


def _removes(method: Method, example: Example | None) -> bool:
    """Whether the method is to remove channels."""
    return isinstance(method, Couples) and method.group == "channel" and example is not None


def _couple(
    method: Method,
    model: nn.Module,
    chosen: list[Site],
    example: Example | None,
    outputs: Sequence[tuple[OutputSite, Chain]],
) -> Coupling | None:
    """The coupled channels of a method that removes them; None where each weight decides for itself."""
    if example is None or not _removes(method, example):
        return None
    if any("group" in options for options in method.overrides.values()):
        raise ConfigError(
            'with group="channel" and an example every layer goes by channels: leave layers out with exclude='
        )
    call = read_example(example, dims=2)
    with zeros_moved(outputs):
        coupling = couple(model, call, {site.name for site in chosen}, type(method).__name__)
    if isinstance(method, Couples):
        method.check_coupling(coupling)
    return coupling


def _relax(methods: list[Method], site: Site, seed: int, couplings: Mapping[str, Coupling | None]) -> list[Relaxation]:
    relaxations = []
    for method in methods:
        own, coupling = method.for_site(site), couplings[method.kind]
        if coupling is None:
            grid = grouping(own.group, site.name, site.weight, site.channel_axis)
        else:
            grid = coupling.grouping(site.name, site.weight.shape)
        relaxation = own.relax(site, grid, seed_for(seed, site.name), {one.kind for one in methods})
        relaxation.match_layout(site.weight)
        relaxations.append(relaxation)
    return relaxations


def _relax_outputs(
    methods: Sequence[Method], model: nn.Module, example: Example | None, seed: int, cut: bool
) -> list[tuple[OutputSite, Chain]]:
    """The output sites of the methods on activations, each with its chain. cut: channels will be removed."""
    made: list[tuple[OutputSite, Chain]] = []
    for method in methods:
        outputs = find_output_sites(model, example, type(method).__name__)
        for site in choose_sites(method, outputs, find_sites(model, dims=0)):
            assert isinstance(site, OutputSite)
            own = method.for_site(site)
            check_output(site, own, cut)
            grid = grouping(own.group, site.name, site.weight, site.channel_axis)
            made.append((site, Chain([own.relax(site, grid, seed_for(seed, site.name), {method.kind})])))
    return made


def _check_starts(
    sites: Sequence[Site], made: Sequence[Sequence[Relaxation]], acting: Mapping[str, Sequence[Method]]
) -> None:
    """Refuse overrides by which weights that share one decision would start it at different values."""
    starts: dict[str, tuple[float, str]] = {}
    for site, relaxations in zip(sites, made, strict=True):
        for relaxation, method in zip(relaxations, acting[site.name], strict=True):
            if relaxation.s is None or not _is_common(relaxation, method.for_site(site)):
                continue
            start = float(relaxation.s.detach().flatten()[0])
            other, name = starts.setdefault(relaxation.kind, (start, site.name))
            if start != other:
                raise ConfigError(
                    f"overrides: {name} and {site.name} share a decision, which cannot start at {other:g} and at {start:g}: "
                    "give one value for all"
                )


def _is_common(relaxation: Relaxation, method: Method) -> bool:
    """Whether the decision is one for many weights: for the network, or for coupled channels."""
    return method.group == "network" or isinstance(relaxation.grouping, Channels)


def _bind(relaxation: Relaxation, method: Method, state: PlanState, site: Site, trained: bool = False) -> None:
    common = _is_common(relaxation, method)
    shared = f"{PREFIX}{method.kind}_shared" if common else ""
    if isinstance(site, Template) and not common:
        shared = f"{site.name}_{method.kind}"
    if shared and not hasattr(state.root, shared):
        start = relaxation.decision.detach().clone()
        state.add_decision(
            shared, start.flatten() if common else start
        )  # what many weights share has no shape of its own
    relaxation.bind(state.root, shared)
    relaxation.decision.requires_grad_(trained and relaxation.decision.requires_grad)


def _set_inputs(coupling: Coupling | None, term: Term, sites: list[Site], chains: Sequence[Chain]) -> None:
    """Let every weight know which of the channels that it reads may go."""
    for site, chain in zip(sites, chains, strict=True):
        inputs = None if coupling is None else coupling.inputs(site.name, site.weight.shape, term.relaxations[0])
        if inputs is not None:
            chain.read_from(inputs.to(site.weight.device))
