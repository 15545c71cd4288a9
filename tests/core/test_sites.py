"""Which weights a method finds, by name, type, predicate or list; tied weights once."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from paretorch import SMOL, ContinuousSparsification, SoftSharing, compress
from paretorch.core.attach.sites import Selector, choose, find_sites
from paretorch.core.method import Method
from paretorch.errors import ConfigError
from paretorch.methods.precision.rivals import LSQ
from paretorch.methods.sparsity.rivals import MagnitudePruning
from tests.decisions import relaxed


class Scaled(nn.Module):
    """A layer of the user's own, with a weight that no rule of ours knows."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(3, 4))
        self.gain = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * (x @ self.matrix.T)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.position = nn.Parameter(torch.zeros(5, 4))
        self.body = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))
        self.conv = nn.ConvTranspose1d(4, 6, 2)
        self.scaled = Scaled()
        self.head = nn.Linear(4, 9)
        self.head.weight = self.embed.weight


USUAL = ["embed.weight", "body.0.weight", "body.2.weight", "conv.weight"]
CASES: dict[str, tuple[Selector | None, Selector, list[str]]] = {
    "usual layers": (None, (), USUAL),
    "pattern": ("body*", (), ["body.0.weight", "body.2.weight"]),
    "pattern of a module": ("body.?", (), ["body.0.weight", "body.2.weight"]),
    "full name": ("body.2.weight", (), ["body.2.weight"]),
    "second name of a tied weight": ("head", (), ["embed.weight"]),
    "type": (nn.Linear, (), ["embed.weight", "body.0.weight", "body.2.weight"]),
    "predicate": (lambda name, m: getattr(m, "out_channels", 0) == 6, (), ["conv.weight"]),
    "list": (["conv", nn.Embedding], (), ["embed.weight", "conv.weight"]),
    "exclude pattern": (None, "body.0", ["embed.weight", "body.2.weight", "conv.weight"]),
    "exclude type": (None, nn.Linear, ["conv.weight"]),
    "exclude list": (None, ["conv", lambda name, m: name == "body.2"], ["embed.weight", "body.0.weight"]),
    "own weights": (["scaled", "position"], (), ["position", "scaled.matrix"]),
    "own type": (Scaled, (), ["scaled.matrix"]),
    "nothing": ("absent*", (), []),
}


@pytest.mark.parametrize("case", list(CASES))
def test_selection(case: str) -> None:
    include, exclude, expected = CASES[case]
    assert {site.name for site in choose(find_sites(Net()), include, exclude)} == set(expected)


def test_a_tied_weight_is_one_site() -> None:
    sites = {site.name: site for site in find_sites(Net())}
    assert "head.weight" not in sites
    assert [name for *_, name in sites["embed.weight"].owners] == ["embed", "head"]
    assert sites["conv.weight"].channel_axis == 1
    assert sites["body.0.weight"].channel_axis == 0


def test_tied_once_in_training_and_tied_after() -> None:
    model = Net()
    plan = compress(model, ContinuousSparsification(target=0.5, include="embed"), steps=4)
    assert model.head.weight is model.embed.weight
    assert (
        len([p for p in model.parameters() if p.shape == (9, 4)]) == 3
    )  # the weight, what is trained behind it, and their one decision
    small = plan.finalize()
    assert small.head.weight is small.embed.weight
    assert int((small.head.weight == 0).sum()) == 18


def test_a_state_that_names_tied_weights_once_is_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    one, other = Net(), Net()
    for model in (one, other):
        compress(
            model,
            ContinuousSparsification(target=0.5, include="embed"),
            SMOL(target_bits=4.0, include="embed"),
            steps=4,
        )
    save_model(one, str(tmp_path / "net.safetensors"))
    load_model(other, tmp_path / "net.safetensors")
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in one.state_dict().items())


def test_the_last_matching_override_wins() -> None:
    overrides = {"body*": {"group": "channel", "init": 0.5}, "body.2": {"group": "layer"}, "*.2": {"init": 1.0}}
    plan = compress(Net(), ContinuousSparsification(overrides=overrides), steps=4)
    shapes = {name: own.sparsity.s for name, own in relaxed(plan.model).items()}
    assert shapes["body.0.weight"].shape == (4, 1)
    assert shapes["body.2.weight"].shape == (1, 1)
    assert shapes["conv.weight"].shape == (4, 6, 2)
    assert float(shapes["body.0.weight"].detach().mean()) == 0.5
    assert float(shapes["body.2.weight"].detach().mean()) == 1.0
    assert float(shapes["conv.weight"].detach().mean()) == 0.0


def test_methods_may_act_on_different_layers() -> None:
    plan = compress(
        Net(),
        ContinuousSparsification(target=0.5, include="body*"),
        SMOL(target_bits=4.0, include=["body.0", "scaled"]),
        steps=4,
    )
    kinds = {name: [one.kind for one in own.relaxations()] for name, own in relaxed(plan.model).items()}
    assert kinds == {
        "body.0.weight": ["precision", "sparsity"],
        "body.2.weight": ["sparsity"],
        "scaled.matrix": ["precision"],
    }


def test_a_number_selects_nothing() -> None:
    with pytest.raises(ConfigError, match="name pattern"):
        choose(find_sites(Net()), 3, ())


@pytest.mark.parametrize("option", ["include", "exclude"])
def test_patterns_that_match_nothing_are_refused(option: str) -> None:
    model = Net()
    with pytest.raises(ConfigError, match=rf"{option}='haed' matches nothing, correct it.* there are position, embed"):
        compress(model, SMOL(**{option: ["body.0", "haed"]}), steps=1)
    with pytest.raises(ConfigError, match=rf"{option}='body' matches nothing, 'body\.\*' takes all below it"):
        compress(model, SMOL(**{option: ("conv", ["body"])}), steps=1)


def test_patterns_may_be_about_what_no_method_acts_on() -> None:
    exclude = ["*.bias", "body.1", "scaled.gain", "position", "head", nn.Bilinear]
    plan = compress(Net(), ContinuousSparsification(target=0.5, exclude=exclude), steps=1)
    assert list(relaxed(plan.model)) == ["body.0.weight", "body.2.weight", "conv.weight"]


def test_patterns_that_can_be_read_but_once_are_refused() -> None:
    with pytest.raises(ConfigError, match="or a list of these"):
        compress(Net(), SMOL(exclude=(name for name in ("embed", "conv"))), steps=1)


def test_weights_that_share_a_decision_start_it_alike() -> None:
    options = {"group": "network", "overrides": {"1": {"init": 0.5}}}
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    with pytest.raises(
        ConfigError, match=r"0\.weight and 1\.weight share a decision, which cannot start at 0 and at 0\.5"
    ):
        compress(model, ContinuousSparsification(**options), steps=1)
    with pytest.raises(ConfigError, match="share a decision"):
        compress(model, ContinuousSparsification(**{**options, "group": "channel"}), steps=1, example=torch.ones(1, 4))
    compress(model, ContinuousSparsification(init=0.5, group="network", overrides={"1": {"group": "layer"}}), steps=1)


def test_weights_of_whole_numbers_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = nn.Parameter(torch.ones(4, 4, dtype=torch.int8), requires_grad=False)
    assert [site.name for site in choose(find_sites(model), "*", ())] == ["0.weight"]


@pytest.mark.parametrize(
    "method", [SMOL(target_bits=4.0), LSQ(), MagnitudePruning(target=0.5), SoftSharing(templates=1)]
)
def test_complex_weights_take_masks_alone(method: Method) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, dtype=torch.complex64), nn.Linear(4, 4))
    with pytest.raises(
        ConfigError, match=rf"1\.weight is complex, and {type(method).__name__} takes real weights alone"
    ):
        compress(model, method, steps=1)
    compress(model, replace(method, exclude="1"), steps=1)
    masked = nn.Sequential(nn.Linear(4, 4, dtype=torch.complex64))
    compress(masked, ContinuousSparsification(target=0.5), steps=1).finalize()
    assert int((masked[0].weight == 0).sum()) == 8


def test_sparse_gradients_are_refused() -> None:
    model = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 4))
    with pytest.raises(ConfigError, match=r"0\.weight has sparse gradients"):
        compress(model, ContinuousSparsification(target=0.5), steps=1)
    compress(model, ContinuousSparsification(target=0.5, exclude="0"), steps=1)


def test_a_compiled_model_is_refused_untouched() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(ConfigError, match="the model is in a OptimizedModule already: compress the model itself first"):
        compress(torch.compile(model), ContinuousSparsification(target=0.5), steps=1)
    compress(model, ContinuousSparsification(target=0.5), steps=1)
