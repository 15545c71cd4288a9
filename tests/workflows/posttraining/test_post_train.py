"""`post_train` through its public name: budgets, untouched inputs, exact files, errors."""

import copy
import math
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import paretorch as pt
from paretorch.errors import ConfigError, DataError
from paretorch.support.inputs import batch_call
from paretorch.workflows.posttraining import post_train
from paretorch.workflows.posttraining.calibration import divergence, output_of
from tests.workflows.posttraining.networks import Depthwise, Tied, images, perceptron, tokens, vectors

NETWORKS = [(perceptron, vectors, 6_000), (Depthwise, images, 5_000), (Tied, tokens, 2_400)]


def max_abs(model: nn.Module, bits: int) -> nn.Module:
    """Rounding per channel, each to its largest weight."""
    found = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in set(found.parameters()):
            if parameter.dim() > 1:
                top = parameter.abs().amax(tuple(range(1, parameter.dim())), keepdim=True)
                step = (top / (2 ** (bits - 1) - 1)).clamp_min(1e-12)
                parameter.copy_((parameter / step).round() * step)
    return found


def _divergence(model: nn.Module, dense: nn.Module, batch: object) -> float:
    return float(divergence(*(output_of(batch_call(one, batch)(one)) for one in (model, dense))))


@torch.no_grad()
def loss(model: nn.Module, dense: nn.Module, batches: list) -> float:
    return sum(_divergence(model, dense, x) for x in batches) / len(batches)


@pytest.mark.parametrize(("build", "batches", "budget"), NETWORKS)
def test_the_file_fits_the_budget_and_the_model_is_untouched(build, batches, budget: int, tmp_path: Path) -> None:
    model = build()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = post_train(model, batches(), budget=budget)
    assert pt.save(found.model, tmp_path / "a.pare").total == found.size
    assert 0.97 * budget <= found.size <= budget
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    loaded = pt.load(tmp_path / "a.pare", into=build())
    for name, value in found.model.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name])
        assert value.isfinite().all() or not value.is_floating_point()


@pytest.mark.parametrize(("build", "batches", "budget"), NETWORKS)
def test_steps_divide_the_weights(build, batches, budget: int) -> None:
    found = post_train(build(), batches(), budget=budget)
    weights = dict(found.model.named_parameters())
    rounded = {name for name, value in weights.items() if value.dim() > 1}
    assert found.steps.keys() == rounded
    for name, steps in found.steps.items():
        codes = weights[name] / steps
        assert torch.equal(codes.round() * steps, weights[name])
        assert codes.abs().max() <= 500.5


@pytest.mark.parametrize("bits", [8, 4, 3])
@pytest.mark.parametrize(("build", "batches"), [(perceptron, vectors), (Depthwise, images), (Tied, tokens)])
def test_never_worse_than_max_abs_per_channel_in_its_bytes(build, batches, bits: int, tmp_path: Path) -> None:
    model = build()
    rival = max_abs(model, bits)
    size = pt.save(rival, tmp_path / "rival.pare").total
    ours = post_train(model, batches(), budget=size).model
    unseen = batches(seed=9)
    assert loss(ours, model, unseen) <= max(loss(rival, model, unseen), 1e-6)  # below which nothing differs


def test_a_tied_weight_stays_tied() -> None:
    found = post_train(Tied(), tokens(), budget=2_400).model
    assert found.head.weight is found.embedding.weight


def test_a_smaller_budget_has_more_zeros_and_a_larger_distance() -> None:
    model, zeros, distances = perceptron(), [], []
    for budget in (9_000, 5_000, 2_500):
        small = post_train(model, vectors(), budget=budget).model
        weights = torch.cat([value.flatten() for value in small.parameters() if value.dim() > 1])
        zeros.append(float((weights == 0).float().mean()))
        distances.append(loss(small, model, vectors(seed=5)))
    assert zeros == sorted(zeros)
    assert distances == sorted(distances)


def test_more_than_enough_gives_the_weights_back_and_stops() -> None:
    model = perceptron()
    found = post_train(model, vectors(), budget="1 MB")
    assert found.size < 1_000_000
    assert loss(found.model, model, vectors(seed=5)) < 1e-4


def test_training_can_go_on_from_there() -> None:
    model = perceptron()
    model[0].bias.requires_grad_(False)
    small = post_train(model, vectors(), budget=6_000).model
    small(vectors()[0]).sum().backward()
    assert [name for name, value in small.named_parameters() if value.grad is None] == ["0.bias"]


def test_batch_norm_keeps_the_moments_of_the_dense_network() -> None:
    """Per channel, what the norms give has about the mean and variance that it has in the dense network."""
    model, batches = Depthwise(), images(8)
    small = post_train(model, batches, budget=2_600).model

    def moments(network: nn.Module) -> torch.Tensor:
        seen = []
        handle = network.norm3.register_forward_hook(lambda m, i, o: seen.append(o.detach()))
        for x in batches:
            network(x)
        handle.remove()
        values = torch.cat(seen).transpose(0, 1).flatten(1)
        return torch.stack([values.mean(1), values.std(1)])

    ours, theirs = moments(small), moments(model)
    with torch.no_grad():
        before = copy.deepcopy(small)
        for name in ("norm1", "norm2", "norm3"):
            getattr(before, name).load_state_dict(getattr(model, name).state_dict())
    assert (ours - theirs).abs().mean() < 0.6 * (moments(before) - theirs).abs().mean()


def test_positional_arguments_and_progress() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(48, 40), nn.Linear(48, 40)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, None]:
            return self.one(x) * self.two(y), None

    seen: list[tuple[str, int, int]] = []
    x = vectors()
    found = post_train(Sum(), list(zip(x, x, strict=True)), budget=2_500, progress=lambda *a: seen.append(a))
    assert found.size <= 2_500
    assert {phase for phase, *_ in seen} == {"sensitivity", "curvature", "rounding"}
    assert ("rounding", 2, 2) in seen


def test_left_out_weights_stay_as_they_are() -> None:
    model = perceptron()
    found = post_train(model, vectors(), budget=12_000, exclude="4")
    assert torch.equal(found.model[4].weight, model[4].weight)
    assert "4.weight" not in found.steps


@settings(max_examples=12, deadline=None)
@example(2899, 0.625)
@given(st.integers(0, 10_000), st.floats(0.6, 6.0))
def test_any_network_any_budget(seed: int, bits: float) -> None:
    """Widths, dead inputs and constant weights as they come: the file fits, and nothing is NaN."""
    generator = torch.Generator().manual_seed(seed)
    widths = torch.randint(16, 60, (3,), generator=generator).tolist()
    model = nn.Sequential(nn.Linear(widths[0], widths[1]), nn.ReLU(), nn.Linear(widths[1], widths[2], bias=False))
    inputs = torch.randn(3, 20, widths[0], generator=generator)
    if seed % 3 == 0:
        inputs[..., : widths[0] // 2] = 0.0
    if seed % 5 == 0:
        nn.init.zeros_(model[2].weight)
    count = sum(value.numel() for value in model.parameters())
    budget = 700 + math.ceil(bits * count / 8)
    found = post_train(model, list(inputs), budget=budget)
    assert found.size <= budget
    assert all(value.isfinite().all() for value in found.model.state_dict().values())


def refused(words: str, batches=None, error: type[Exception] = ConfigError, **options) -> None:
    model = perceptron()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=words):
        post_train(model, vectors() if batches is None else batches, **{"budget": 6_000, **options})
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_cannot_work_is_one_sentence() -> None:
    refused("gave no batch", [], DataError)
    refused("gave no batch", iter(()), DataError)
    refused("give several", {"x": vectors()[0]})
    refused(r"Batch 1 .* NaN", [torch.zeros(4, 48), torch.full((4, 48), torch.nan)], DataError)
    refused("does not run on the first batch", [torch.zeros(4, 7)])
    refused("overflow", [vectors()[0], torch.full((4, 48), 1e30)], DataError)
    refused("allow at least", budget=300)
    refused("is not a size", budget="much")
    refused("no weight to round", exclude="*")
    refused("at least one batch", most_batches=0)


def test_the_least_budget_that_it_names_is_possible() -> None:
    model = perceptron()
    with pytest.raises(ConfigError) as raised:
        post_train(model, vectors(), budget=300)
    least = int(str(raised.value).rsplit(" ", 1)[1])
    assert post_train(model, vectors(), budget=least).size <= least


def test_a_damaged_network_is_refused() -> None:
    model = perceptron()
    with torch.no_grad():
        model[0].bias[0] = torch.nan
    with pytest.raises(ConfigError, match="returns NaN"):
        post_train(model, vectors(), budget=6_000)
    model = perceptron()
    with torch.no_grad():
        model[0].weight[0, 0] = torch.nan
    with pytest.raises(ConfigError, match=r"0\.weight holds NaN"):
        post_train(model, vectors(), budget=6_000)


def test_labels_are_left_out_and_a_budget_may_be_a_share() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    inputs = [torch.randn(32, 64) for _ in range(4)]
    labelled = [(x, torch.zeros(32, dtype=torch.long)) for x in inputs]
    found, same = (post_train(network, batches, budget="1/8") for batches in (inputs, labelled))
    assert found.size <= 4 * sum(parameter.numel() for parameter in network.parameters()) // 8
    for one, other in zip(found.model.parameters(), same.model.parameters(), strict=True):
        assert torch.equal(one, other)
