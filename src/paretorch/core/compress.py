"""`compress`: one verb that turns a model and some methods into a plan."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from paretorch.core.attach.activations import Spot, attach_output, check_output, find_spots, zeros_moved
from paretorch.core.attach.choose import choose_sites, tell_of_zeros
from paretorch.core.attach.sites import Site, Template, find_sites
from paretorch.core.attach.templates import Mix, install, on_templates
from paretorch.core.attach.weights import RelaxedWeight
from paretorch.core.channels.couple import couple
from paretorch.core.channels.coupling import Channels, Coupling
from paretorch.core.finish.byte_budget import ByteBudget, Edit, Meter, assign_targets
from paretorch.core.finish.finalize import earlier_edits
from paretorch.core.groups import grouping
from paretorch.core.method import Couples, Method, Shares, Steered, Term
from paretorch.core.plan import Plan
from paretorch.core.relaxation import PREFIX, Chain, Relaxation
from paretorch.core.state import PlanState
from paretorch.core.step.noise import seed_for
from paretorch.core.step.sample import Sample
from paretorch.edits.mixed import MixedWeight
from paretorch.errors import ConfigError
from paretorch.support.checks import require_count
from paretorch.support.sharded import is_sharded


def compress(
    model: nn.Module,
    *methods: Method,
    steps: int,
    example: Tensor | None = None,
    budget: int | None = None,
    seed: int = 0,
    meter: Meter | None = None,
) -> Plan:
    """Attach the methods to the model's weights and return the plan that trains, rounds and removes them.

    steps: optimizer steps until `harden`. example: a batch of inputs, where channels are to be removed (`group="channel"`)
    or activations are quantized.
    budget: bytes of the saved file, kept at `finalize`. seed: of the noise. meter: counts the bytes of a state.
    Load pretrained weights before; wrap in DDP, FSDP2, compile or an average after.
    """
    _check(model, methods, steps, budget, seed)
    named = find_sites(model, dims=0)
    every = [site for site in named if site.weight.dim() > 0]
    sites = [site for site in every if site.weight.dim() > 1]
    on_outputs = tuple(method for method in methods if method.on_activations)
    on_weights = tuple(method for method in methods if not method.on_activations)
    chosen = {method.room: choose_sites(method, sites, named) for method in on_weights}
    aimed = on_weights
    if budget is not None and not on_weights:
        raise ConfigError("budget= counts the bytes of the weights: give a method that acts on weights too")
    if meter is not None:
        before = earlier_edits(model, [site for own in chosen.values() for site in own])
        meter = partial(_after, meter, before)
    if budget is not None and meter is not None:
        aimed = assign_targets(on_weights, model, chosen, budget, meter)
    for method in aimed:
        if isinstance(method, Steered):
            method.check_beside({one.room for one in aimed})
    asked = {method.room: budget for method, given in zip(aimed, on_weights, strict=True) if method is not given}
    spots = _relax_outputs(on_outputs, model, example, seed, cut=any(_removes(method, example) for method in aimed))
    couplings: dict[str, Coupling | None] = {}
    for method in aimed:
        with _told_by(asked.get(method.room)):
            couplings[method.room] = _couple(method, model, chosen[method.room], example, spots)
    for room, coupling in couplings.items():
        if coupling is not None:
            chosen[room] = [site for site in every if site.name in coupling.gates]
    sharing = [method for method in aimed if isinstance(method, Shares)]
    mixtures = [one for method in sharing for one in method.mix(model, chosen[method.room], seed)]
    if mixtures and any(couplings.values()):
        raise ConfigError(
            "channels of layers that share templates cannot be removed: leave out example=, or share less"
        )
    if mixtures:
        every, chosen = on_templates(mixtures, every, chosen)
    acting = {site.name: sorted((m for m in aimed if site in chosen[m.room]), key=lambda m: m.order) for site in every}
    touched = [site for site in every if acting[site.name]]
    made = [_relax(acting[site.name], site, seed, couplings) for site in touched]
    _check_starts(touched, made, acting)
    tell_of_zeros(touched, acting)
    for method in aimed:
        own = [r for relaxations in made for r in relaxations if r.room == method.room]
        sizes = [float(torch.as_tensor(r.grouping.sizes).min()) for r in own]
        if isinstance(method, Steered) and own and couplings[method.room] is None and method.group != "network":
            with _told_by(asked.get(method.room)):
                method.check_groups(min(sizes), float(sum(math.prod(r.grouping.shape) for r in own)))
    # Nothing was touched so far: whatever is wrong with the options has been said by now.
    ordered = tuple(next(m for m in (*aimed, *on_outputs) if m.room == method.room) for method in methods)
    device = spots[0][0].device if spots else next(model.parameters()).device
    estimated = {
        f"{method.room}.{one.name}"
        for method, given in zip(aimed, on_weights, strict=True)
        for one in fields(method)
        if getattr(method, one.name) != getattr(given, one.name)
    }
    state = PlanState(model, ordered, steps, seed, device, frozenset(estimated))
    terms = {m.room: Term(m, model, steps, [], [], [], couplings.get(m.room), Sample) for m in ordered}
    chains = [RelaxedWeight(site, relaxations) for site, relaxations in zip(touched, made, strict=True)]
    for site, relaxations, chain in zip(touched, made, chains, strict=True):
        for relaxation in relaxations:
            _bind(relaxation, terms[relaxation.room].method.for_site(site), state, site)
            terms[relaxation.room].add(site, relaxation, chain)
        for module in chain.modules():
            module.training = site.owners[0][0].training
        if not isinstance(site, Template):
            # A grid may have no zero.
            if site.padding is not None and any(terms[r.room].method.unit == "bits" for r in relaxations):
                chain.blank = site.padding
            chain.attach()
    for room, coupling in couplings.items():
        _tell_inputs(coupling, terms[room], touched, chains)
    by_name = {site.name: chain for site, chain in zip(touched, chains, strict=True)}
    every_chain: list[Chain] = list(chains)
    for site, mixed in (one for mixture in mixtures for one in install(mixture, by_name, model, state.add_shared)):
        (relaxation,) = mixed.relaxations()
        terms[Mix.room].add(site, relaxation, mixed)
        touched.append(site)
        every_chain.append(mixed)
    for spot, output in spots:
        (relaxation,) = output.relaxations()
        _bind(relaxation, terms[relaxation.room].method.for_site(spot), state, spot, trained=True)
        terms[relaxation.room].add(spot, relaxation, output)
        output.train(spot.module.training)
        attach_output(spot, output)
    plan = Plan(model, touched, every_chain, list(terms.values()), state, spots)
    if budget is not None and meter is not None:
        given = frozenset(method.room for method in on_weights if method.share is not None)
        plan.keep_to(ByteBudget(budget, meter, given))
    return plan


@contextmanager
def _told_by(budget: int | None) -> Iterator[None]:
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


def _removes(method: Method, example: Tensor | None) -> bool:
    """Whether the method is to remove channels."""
    return isinstance(method, Couples) and method.group == "channel" and example is not None


def _couple(
    method: Method, model: nn.Module, chosen: list[Site], example: Tensor | None, spots: Sequence[tuple[Spot, Chain]]
) -> Coupling | None:
    """The coupled channels of a method that removes them; None where each weight decides for itself."""
    if example is None or not _removes(method, example):
        return None
    if any("group" in options for options in method.overrides.values()):
        raise ConfigError(
            'with group="channel" and an example every layer goes by channels: leave layers out with exclude='
        )
    if not isinstance(example, Tensor) or example.dim() < 2 or not len(example):
        raise ConfigError("example: give a batch of inputs, a tensor as the model takes it")
    with zeros_moved(spots):
        coupling = couple(model, example, {site.name for site in chosen}, type(method).__name__)
    if isinstance(method, Couples):
        method.check_coupling(coupling)
    return coupling


def _relax(methods: list[Method], site: Site, seed: int, couplings: Mapping[str, Coupling | None]) -> list[Relaxation]:
    relaxations = []
    for method in methods:
        own, coupling = method.for_site(site), couplings[method.room]
        if coupling is None:
            grid = grouping(own.group, site.name, site.weight, site.channel_axis)
        else:
            grid = coupling.grouping(site.name, site.weight.shape)
        relaxation = own.relax(site, grid, seed_for(seed, site.name), {one.room for one in methods})
        relaxation.lie_like(site.weight)
        relaxations.append(relaxation)
    return relaxations


def _relax_outputs(
    methods: Sequence[Method], model: nn.Module, example: Tensor | None, seed: int, cut: bool
) -> list[tuple[Spot, Chain]]:
    """The spots of the methods on activations, each with the chain that will sit there. cut: channels will be removed."""
    made: list[tuple[Spot, Chain]] = []
    for method in methods:
        spots = find_spots(model, example, type(method).__name__)
        for spot in choose_sites(method, spots, find_sites(model, dims=0)):
            assert isinstance(spot, Spot)
            own = method.for_site(spot)
            check_output(spot, own, cut)
            grid = grouping(own.group, spot.name, spot.weight, spot.channel_axis)
            made.append((spot, Chain([own.relax(spot, grid, seed_for(seed, spot.name), {method.room})])))
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
            other, name = starts.setdefault(relaxation.room, (start, site.name))
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
    shared = f"{PREFIX}{method.room}_shared" if common else ""
    if isinstance(site, Template) and not common:
        shared = f"{site.name}_{method.room}"
    if shared and not hasattr(state.root, shared):
        start = relaxation.decision.detach().clone()
        state.add_decision(
            shared, start.flatten() if common else start
        )  # what many weights share has no shape of its own
    relaxation.bind(state.root, shared)
    relaxation.decision.requires_grad_(trained and relaxation.decision.requires_grad)


def _tell_inputs(coupling: Coupling | None, term: Term, sites: list[Site], chains: Sequence[Chain]) -> None:
    """Let every weight know which of the channels that it reads may go."""
    for site, chain in zip(sites, chains, strict=True):
        inputs = None if coupling is None else coupling.inputs(site.name, site.weight.shape, term.relaxations[0])
        if inputs is not None:
            chain.read_from(inputs.to(site.weight.device))


def _check(model: nn.Module, methods: tuple[Method, ...], steps: int, budget: int | None, seed: int) -> None:
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
    rooms = [method.room for method in methods]
    if len(set(rooms)) < len(rooms):
        raise ConfigError(
            "two methods of one kind cannot act on one model: give one of them, with overrides for the layers that differ"
        )
    hint = "give the number of optimizer steps until harden, such as epochs * len(loader)"
    require_count("steps", steps, 1, hint)
    require_count("seed", seed, 0, "give a whole number, 0 or more")
    if budget is not None:
        require_count("budget", budget, 1, "give the bytes of the file, such as 48_000")
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
        if parameter.is_floating_point() and not bool(torch.isfinite(parameter).all()):
            raise ConfigError(f"{name} has values that are not finite: load or initialize its weights before compress")
