"""`compress`: one verb that turns a model and some methods into a plan."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from paretorch.core.attach import attach
from paretorch.core.budget_bytes import ByteBudget, Meter, assign_targets
from paretorch.core.channels import Channels, Coupling
from paretorch.core.couple import couple
from paretorch.core.groups import grouping
from paretorch.core.method import Method, Term
from paretorch.core.noise import seed_for
from paretorch.core.options import require_count
from paretorch.core.plan import Plan
from paretorch.core.relaxation import PREFIX, Chain, Relaxation
from paretorch.core.sites import Site, choose, find_sites
from paretorch.core.state import PlanState
from paretorch.core.tensors import is_sharded
from paretorch.errors import ConfigError


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

    steps: optimizer steps until `harden`. example: a batch of inputs, where channels are to be removed (`group="channel"`).
    budget: bytes of the saved file, kept at `finalize`. seed: of the noise. meter: counts the bytes of a state.
    Load pretrained weights before; wrap in DDP, FSDP2, compile or an average after.
    """
    _check(model, methods, steps, budget, seed)
    every = find_sites(model, dims=1)
    sites = [site for site in every if site.weight.dim() > 1]
    chosen = {method.room: choose(sites, method.include, method.exclude) for method in methods}
    for method in methods:
        if not chosen[method.room]:
            raise ConfigError(
                f"{type(method).__name__} finds no layer to act on: include={method.include!r}, exclude={method.exclude!r}; "
                f"the model has {', '.join(site.name for site in sites[:4]) or 'no weight of two dimensions'}{' …' if len(sites) > 4 else ''}"
            )
    aimed = methods
    if budget is not None and meter is not None:
        aimed = assign_targets(methods, model, chosen, budget, meter)
    for method in aimed:
        method.check_beside({one.room for one in aimed})
    couplings = {method.room: _couple(method, model, chosen[method.room], example) for method in aimed}
    for room, coupling in couplings.items():
        if coupling is not None:
            chosen[room] = [site for site in every if site.name in coupling.gates]
    acting = {site.name: sorted((m for m in aimed if site in chosen[m.room]), key=lambda m: m.order) for site in every}
    touched = [site for site in every if acting[site.name]]
    made = [_relax(acting[site.name], site, seed, couplings) for site in touched]
    for method in aimed:
        own = [r for relaxations in made for r in relaxations if r.room == method.room]
        sizes = [float(torch.as_tensor(r.grouping.sizes).min()) for r in own]
        if couplings[method.room] is None and method.group != "network":
            method.check_groups(min(sizes), float(sum(math.prod(r.grouping.shape) for r in own)))
    # Nothing was touched so far: whatever is wrong with the options has been said by now.
    state = PlanState(model, aimed, steps, seed, touched[0].weight.device)
    terms = {m.room: Term(m, model, steps, [], [], [], couplings[m.room]) for m in aimed}
    chains = [Chain(relaxations) for relaxations in made]
    for site, relaxations, chain in zip(touched, made, chains, strict=True):
        for relaxation in relaxations:
            _bind(relaxation, terms[relaxation.room].method.for_site(site), state)
            terms[relaxation.room].add(site, relaxation, chain)
        chain.train(site.owners[0][0].training)
        attach(site, chain)
    plan = Plan(model, touched, chains, list(terms.values()), state)
    if budget is not None and meter is not None:
        plan.keep_to(ByteBudget(budget, meter))
    return plan


def _couple(method: Method, model: nn.Module, chosen: list[Site], example: Tensor | None) -> Coupling | None:
    """The coupled channels of a method that removes them; None where each weight decides for itself."""
    if not method.couples or method.group != "channel" or example is None:
        return None
    if any("group" in options for options in method.overrides.values()):
        raise ConfigError(
            'with group="channel" and an example every layer goes by channels: leave layers out with exclude='
        )
    if not isinstance(example, Tensor) or example.dim() < 2:
        raise ConfigError("example: give a batch of inputs, a tensor as the model takes it")
    coupling = couple(model, example, {site.name for site in chosen}, type(method).__name__)
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


def _bind(relaxation: Relaxation, method: Method, state: PlanState) -> None:
    shared = ""
    if method.group == "network" or isinstance(relaxation.grouping, Channels):
        shared = f"{PREFIX}{method.room}_shared"
        if not hasattr(state.root, shared):
            state.add_shared(shared, relaxation.decision.detach().flatten().clone())
    relaxation.bind(state.root, shared)


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
    for name, module in model.named_modules():
        if parametrize.is_parametrized(module):
            raise ConfigError(
                f"{name or 'the model'} is parametrized already: pass all methods to one compress, or finalize the old plan first"
            )
    if any(p.is_meta for p in model.parameters()):
        raise ConfigError("the model has no values yet (meta device): load or initialize its weights before compress")
    if any(is_sharded(p.data) for p in model.parameters()):
        raise ConfigError("the model is sharded already: compress first, then fully_shard")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            raise ConfigError(f"{name} is not initialized yet: run one batch through the model before compress")
        if parameter.is_floating_point() and not bool(torch.isfinite(parameter).all()):
            raise ConfigError(f"{name} has values that are not finite: load or initialize its weights before compress")
