"""AMC (He et al., "AMC: AutoML for Model Compression and Acceleration on Mobile Devices", 2018), weight by weight as in
the thesis (section 4.4.1).

An agent walks through the layers of a trained network and picks how much of each to drop; then, in one shot, the
smallest weights of each layer go:    m_t = 1{|w| ≥ τ_t},   τ_t the quantile of |w| in layer t at its share a_t

Its reward is −error on held-out data, without fine-tuning; the budget is kept by bounding its actions (`amc_layers`).
The best shares of all episodes are taken. Training is dense until `harden_searched`, which searches and prunes; plain
`harden` drops the same share of every layer.

What differs: where the agent drops more than the target, all layers get some back in proportion to what they keep, so
that the target is met exactly; `reduced` and `rest` of a state count weights, the resource of the budget, not FLOPs.

The agent is trained by deep deterministic policy gradients (Lillicrap et al., 2015), as He et al. use them:

    a ~ TN(μ(state), σ², 0, 1),   σ = σ₀ for the first episodes, then σ₀ · 0.95^(episodes since)
    y = R − b + Q′(state′, μ′(state′)),   γ = 1, nothing after the last layer;   loss of the critic: mean of (y − Q(state, a))²

b is a moving average of the rewards so far. Actor and critic have two hidden layers of 300 units; Adam at 1e-4 and 1e-3,
targets that follow by 0.01, batches of 64 out of the last 2000 transitions. All of it is drawn from one seed, on the CPU.

A walk through the layers (section 3 and Algorithm 1):

    state   (t, n, c, h, w, stride, k, FLOPs_t, reduced, rest, a_{t−1}), each scaled to [0, 1]
    action  a ← min(a, a_max);   duty = α Σ W − a_max Σ_{k>t} W_k − reduced;   a ← max(a, duty / W_t)

W_t is what the layer holds of the resource under the budget, here its weights; α is the target. So whatever the agent
wants, at least α of all weights are dropped in the end, and no layer loses more than a_max.
"""

import copy
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from paretorch.core.attach.sites import Site, is_conv1d
from paretorch.core.attach.templates import chains_of
from paretorch.core.groups import Grouping
from paretorch.core.method import Term
from paretorch.core.plan import Plan
from paretorch.core.rounding import keep_best
from paretorch.errors import ConfigError
from paretorch.methods.sparsity.rivals.rival import LateMask, Rival
from paretorch.support.checks import require_count, require_number
from paretorch.support.eval_mode import watched
from paretorch.support.sharded import whole, write

_HIDDEN, _BATCH, _MEMORY = 300, 64, 2000
_ACTOR_RATE, _CRITIC_RATE, _FOLLOW = 1e-4, 1e-3, 0.01
_SIGMA, _DECAY = 0.5, 0.95
_AVERAGE = 0.95  # of the baseline

Transition = tuple[Tensor, float, float, Tensor, bool]
"""State, action, reward, next state, whether it was the last layer."""


class Agent:
    """Picks an action in (0, 1) for a state, and learns from episodes."""

    def __init__(self, features: int, seed: int) -> None:
        self._draw = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = nn.Sequential(_network(features), nn.Sigmoid())
            self.critic = _network(features + 1)
        self._late_actor, self._late_critic = copy.deepcopy((self.actor, self.critic))
        self._actor_step = torch.optim.Adam(self.actor.parameters(), _ACTOR_RATE)
        self._critic_step = torch.optim.Adam(self.critic.parameters(), _CRITIC_RATE)
        self._memory: deque[Transition] = deque(maxlen=_MEMORY)
        self.baseline: float | None = None

    def act(self, state: Tensor, sigma: float) -> float:
        """μ(state) with noise."""
        with torch.no_grad():
            mean = float(self.actor(state[None]))
        return truncated_normal(mean, sigma, self._draw)

    def remember(self, states: list[Tensor], actions: list[float], reward: float) -> None:
        """Take in an episode; every layer of it has the reward of the whole."""
        last = len(states) - 1
        for t, (state, action) in enumerate(zip(states, actions, strict=True)):
            self._memory.append((state, action, reward, states[min(t + 1, last)], t == last))
        before = reward if self.baseline is None else self.baseline
        self.baseline = _AVERAGE * before + (1 - _AVERAGE) * reward

    def learn(self) -> None:
        """One step of critic and actor on remembered transitions."""
        picked = torch.randint(len(self._memory), (_BATCH,), generator=self._draw).tolist()
        rows = [self._memory[i] for i in picked]
        state, following = (torch.stack([row[i] for row in rows]) for i in (0, 3))  # type: ignore[misc]
        action, reward, last = (torch.tensor([float(row[i]) for row in rows])[:, None] for i in (1, 2, 4))
        with torch.no_grad():
            after = self._late_critic(torch.cat([following, self._late_actor(following)], 1))
            goal = wanted_value(reward, self.baseline or 0.0, after, last)
        loss = (goal - self.critic(torch.cat([state, action], 1))).square().mean()
        _take(self._critic_step, loss)
        _take(self._actor_step, -self.critic(torch.cat([state, self.actor(state)], 1)).mean())
        for late, own in ((self._late_actor, self.actor), (self._late_critic, self.critic)):
            for slow, fast in zip(late.parameters(), own.parameters(), strict=True):
                slow.data.lerp_(fast.data, _FOLLOW)


def wanted_value(reward: Tensor, baseline: float, after: Tensor, last: Tensor) -> Tensor:
    """y: what Q should have been."""
    return reward - baseline + (1 - last) * after


def noise(episode: int, warmup: int) -> float:
    """σ of an episode, counted from 0."""
    return float(_SIGMA * _DECAY ** max(episode - warmup + 1, 0))


def truncated_normal(mean: float, sigma: float, draw: torch.Generator) -> float:
    """A sample of N(mean, σ²) within [0, 1], by the inverse of its distribution function."""
    if sigma < 1e-6:
        return min(max(mean, 0.0), 1.0)
    low, high = torch.special.ndtr((torch.tensor([0.0, 1.0], dtype=torch.float64) - mean) / sigma)
    u = low + (high - low) * torch.rand((), dtype=torch.float64, generator=draw)
    return min(max(mean + sigma * float(torch.special.ndtri(u)), 0.0), 1.0)


def _network(inputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, 1)
    )


def _take(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


FEATURES = 11


@dataclass(frozen=True)
class Layer:
    """Output and input channels, size of the input map, stride, kernel size, multiply-adds, weights."""

    n: int
    c: int
    h: int
    w: int
    stride: int
    k: int
    macs: int
    weights: int


def layers_of(model: nn.Module, example: Tensor) -> dict[nn.Module, Layer]:
    """Every decided layer in the order of the forward pass."""
    found: dict[nn.Module, Layer] = {}
    weights: dict[nn.Module, list[Tensor]] = {}
    for module in model.modules():
        own = [weight for chain, weight in chains_of(module) if any(r.kind == "sparsity" for r in chain.relaxations())]
        if own and not any(one is other for one in own for others in weights.values() for other in others):
            weights[module] = own  # a tied weight is its first owner's

    def look(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if module not in found:
            found[module] = _layer(module, weights[module], inputs[0], output)

    with watched(model, dict.fromkeys(weights, look)):
        model(example[:1])
    return found


def _layer(module: nn.Module, weights: list[Tensor], given: Tensor, output: Any) -> Layer:
    shape = weights[0].shape
    count = sum(weight.numel() for weight in weights)
    height, width = given.shape[-2:] if given.dim() == 4 else (1, given.shape[-1] if given.dim() == 3 else 1)
    first: Tensor = output[0] if isinstance(output, tuple) else output
    stride: Any = getattr(module, "stride", 1)
    n, c, uses = shape[0], shape[1], first.numel() // shape[0]
    if isinstance(module, _ConvTransposeNd):  # stored by its inputs, and each of these is spread over the kernel
        n, c, uses = shape[1] * module.groups, shape[0] // module.groups, given.numel() // shape[0]
    elif is_conv1d(module):
        n, c, uses = shape[1], shape[0], first.numel() // shape[1]
    return Layer(
        n=n,
        c=c,
        h=height,
        w=width,
        stride=stride[0] if isinstance(stride, tuple) else int(stride),
        k=shape[2] if len(shape) > 2 else 1,
        macs=count * max(uses // len(given), 1),
        weights=count,
    )


class Walk:
    """The states of an episode: fixed facts of the layers, and what has been done so far."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        facts = torch.tensor([(t + 1, *astuple(layer)[:7]) for t, layer in enumerate(layers)], dtype=torch.float64)
        self._facts = facts / facts.amax(0).clamp_min(1)
        self.weights = [layer.weights for layer in layers]

    def state(self, t: int, reduced: float, last: float) -> Tensor:
        """Before layer t, with so many weights dropped so far and the share `last` of the layer before."""
        total = sum(self.weights)
        rest = sum(self.weights[t + 1 :])
        return torch.cat([self._facts[t], torch.tensor([reduced / total, rest / total, last])]).float()

    def bounded(self, t: int, action: float, reduced: float, target: float, most: float) -> float:
        """The share of layer t to drop, so that the target can still be met."""
        duty = target * sum(self.weights) - most * sum(self.weights[t + 1 :]) - reduced
        return max(min(action, most), duty / self.weights[t])


@dataclass(frozen=True, kw_only=True)
class AMC(Rival):
    """Search how much of each layer to drop, by reinforcement learning; drop the smallest weights.

    target: share of the selected weights to drop. most: a_max, the largest share of one layer; None: the one that keeps
    a fifth of the average density. episodes: networks tried. warmup: episodes of pure exploration before the agent learns.
    """

    most: float | None = None
    episodes: int = 400
    warmup: int = 100

    def check(self) -> None:
        super().check()
        require_count("episodes", self.episodes, 1, "give the number of networks to try, 1 or more")
        require_count("warmup", self.warmup, 0, "give the episodes before the agent learns, 0 or more")
        if self.most is not None and self.target is not None:
            hint = (
                "no layer may lose all, and together they must reach the target: give a share from "
                f"{self.target:g} to just below 1"
            )
            require_number("most", self.most, self.target, math.nextafter(1.0, 0.0), hint)

    def bound(self) -> float:
        """a_max."""
        return 1.0 - (1.0 - self.require_target()) / 5 if self.most is None else self.most

    def relax(self, site: Site, grouping: Grouping, seed: int, together: set[str]) -> "_Allotted":
        return _Allotted(grouping, self.require_target(), site.weight.device)

    def round(self, term: Term, factor: float) -> None:
        members = [r for r in term.relaxations if isinstance(r, _Allotted)]
        goal = min((1.0 - self.require_target()) * factor, 1.0) * term.weights
        sizes = [site.weight.numel() for site in term.sites]
        counts = kept_counts([float(r.share) for r in members], sizes, round(goal))
        for r, latent, count in zip(members, term.latents(), counts, strict=True):
            size = torch.as_tensor(r.grouping.sizes, device=r.decision.device).expand(r.grouping.grid)
            score = r.grouping.reduce(whole(latent).float().abs()) / size
            (kept,) = keep_best([score], [size], count)
            write(r.decision, torch.where(kept, 1.0, -1.0))


class _Allotted(LateMask):
    """A mask with the share of its layer that is to be dropped."""

    share: Tensor

    def __init__(self, grouping: Grouping, share: float, device: torch.device) -> None:
        super().__init__(grouping, device)
        self.register_buffer("share", torch.full((), share, dtype=torch.float32, device=device))


def harden_searched(
    plan: Plan,
    evaluate: Callable[[nn.Module], float],
    example: Tensor,
    seed: int = 0,
    optimizer: torch.optim.Optimizer | None = None,
) -> float:
    """Search the shares of the layers, harden with the best; its accuracy.

    evaluate: the accuracy (0 to 1) of a model on data that is not the test set. example: an input, to see the layers.
    """
    method = next((one for one in plan.methods() if isinstance(one, AMC)), None)
    if method is None:
        raise ConfigError("this plan has nothing to search: use harden_searched with AMC")
    plan.require_finite()
    layers = layers_of(plan.model, example.float() if example.is_floating_point() else example)
    walk, agent = Walk(list(layers.values())), Agent(FEATURES, seed)
    best, found = -math.inf, list[float]()
    for episode in range(method.episodes):
        states, shares = episode_of(walk, agent, noise(episode, method.warmup), method.require_target(), method.bound())
        _allot(list(layers), shares)
        with plan.hardened() as model, torch.no_grad():
            accuracy = float(evaluate(model))
        if not math.isfinite(accuracy):
            raise ConfigError(f"evaluate gave {accuracy}: return the accuracy, from 0 to 1")
        agent.remember(states, shares, reward_of(accuracy))
        if episode >= method.warmup:
            for _ in shares:
                agent.learn()
        if accuracy > best:
            best, found = accuracy, shares
    _allot(list(layers), found)
    plan.harden(optimizer)
    return best


def reward_of(accuracy: float) -> float:
    """−error: the budget is kept by the bounds of the actions, so the reward need not speak of it."""
    return accuracy - 1.0


def episode_of(walk: Walk, agent: Agent, sigma: float, target: float, most: float) -> tuple[list[Tensor], list[float]]:
    """One walk through the layers: the states seen, and the share of each layer to drop."""
    states, shares = list[Tensor](), list[float]()
    reduced, last = 0.0, 0.0
    for t, weights in enumerate(walk.weights):
        states.append(walk.state(t, reduced, last))
        last = walk.bounded(t, agent.act(states[-1], sigma), reduced, target, most)
        shares.append(last)
        reduced += last * weights
    return states, shares


def kept_counts(shares: Sequence[float], sizes: Sequence[int], kept: int) -> list[int]:
    """How many weights each layer keeps: in proportion to (1 − share) · size, `kept` in all, no layer more than it has."""
    wishes = [(1.0 - share) * size for share, size in zip(shares, sizes, strict=True)]
    low, high = 0.0, max(size / wish for size, wish in zip(sizes, wishes, strict=True))
    for _ in range(64):
        middle = (low + high) / 2
        enough = sum(min(size, middle * wish) for size, wish in zip(sizes, wishes, strict=True)) >= kept
        low, high = (low, middle) if enough else (middle, high)
    exact = [min(size, high * wish) for size, wish in zip(sizes, wishes, strict=True)]
    counts = [int(value) for value in exact]
    by_rest = sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])
    for i in by_rest[: max(kept - sum(counts), 0)]:
        counts[i] += 1
    return counts


def _allot(modules: Sequence[nn.Module], shares: Sequence[float]) -> None:
    for module, share in zip(modules, shares, strict=True):
        for chain, _ in chains_of(module):
            for r in chain.relaxations():
                if isinstance(r, _Allotted):
                    r.share.fill_(share)
