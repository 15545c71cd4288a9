"""Each edit on a model: what it changes, and that an edit that does not fit raises without a change."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from paretorch import compress, load, save
from paretorch.deploy.artefact import open_artefact
from paretorch.deploy.filling import replayed
from paretorch.edits import Edit, KeepChannels, ModelInfo, QuantizeActivation, QuantizedActivation, Scale, Share
from paretorch.edits.share import unshare
from paretorch.errors import ArtefactError, ConfigError
from paretorch.methods.precision.shuffle import precision_map
from paretorch.methods.sharing import SoftSharing, layer_similarity

KEPT = [0, 2, 3, 5]
CUT = KeepChannels("2d", 6, outputs=("0", "1"), inputs=("3",))
LOOP = Share("shared_0", 2, ("0.weight", "1.weight", "2.weight"), ((0,), (0, 1), (1,)))


def convolutions() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 1)).eval()


def linears() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(5, 5) for _ in range(3)))


def fill(network: nn.Module) -> None:
    """Shared tensors and coefficients of `LOOP`."""
    generator = torch.Generator().manual_seed(1)
    for name, tensor in network.state_dict().items():
        if name.startswith("shared_0") or name.endswith("sharing.s"):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))


def test_channels_are_cut_on_both_sides() -> None:
    model, whole = convolutions(), convolutions().state_dict()
    weight = model[0].weight
    weight.grad = torch.ones_like(weight)
    expected = dict(whole)
    for name in ("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"):
        expected[name] = whole[name][KEPT]
    expected["3.weight"] = whole["3.weight"][:, KEPT]
    foretold = CUT.cut_state(whole, model)
    CUT.apply(model)
    for state in (foretold, model.state_dict()):
        assert state.keys() == expected.keys()
        assert all(torch.equal(state[name], value) for name, value in expected.items())
    assert model[0].weight is weight
    assert weight.grad is None
    assert (model[0].out_channels, model[1].num_features, model[3].in_channels) == (4, 4, 4)
    assert model(torch.randn(1, 2, 5, 5)).shape == (1, 4, 3, 3)


def test_an_activation_is_quantized_under_all_its_names() -> None:
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(3, 4), relu, nn.Linear(4, 4), relu)
    edit = QuantizeActivation(("1", "3"), (4,))
    edit.apply(model)
    assert isinstance(model[1], QuantizedActivation)
    assert model[1] is model[3]
    assert model[1].inner is relu
    assert edit.added_names() == {"1.steps", "1.bounds", "3.steps", "3.bounds"} <= set(model.state_dict())
    assert edit.added_bytes() == sum(tensor.nbytes for tensor in (model[1].steps, model[1].bounds))
    steps = torch.tensor([1, 3, 7, 15], dtype=torch.int32)
    model.load_state_dict({"1.steps": steps, "1.bounds": torch.tensor([0.0, 2.0])}, strict=False)
    x = torch.tensor([[0.4, 0.4, 0.4, 9.0], [-1.0, 1.1, 1.1, 1.1]])
    expected = torch.round(x.clamp(0.0, 2.0) / 2.0 * steps) / steps * 2.0
    torch.testing.assert_close(model[1].eval()(x), expected)


def test_weights_are_mixed_from_shared_tensors() -> None:
    network = linears()
    LOOP.apply(network)
    assert list(network.state_dict()) == [
        "shared_0_0",
        "shared_0_1",
        *(f"{i}.{name}" for i in range(3) for name in ("bias", "parametrizations.weight.original", "parametrizations.weight.0.sharing.s")),
    ]  # fmt: skip
    fill(network)
    state = network.state_dict()
    for i, own in enumerate(LOOP.uses):
        factors = state[f"{i}.parametrizations.weight.0.sharing.s"]
        expected = sum(factor * state[f"shared_0_{j}"] for factor, j in zip(factors, own, strict=True))
        torch.testing.assert_close(network[i].weight, expected)
    network(torch.randn(2, 5)).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_coefficients_stay_float32(dtype: torch.dtype) -> None:
    network = linears()
    LOOP.apply(network)
    fill(network)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    network.to(dtype)
    for name, value in network.state_dict().items():
        assert value.dtype == (torch.float32 if name.endswith("sharing.s") else dtype)
        assert not name.endswith("sharing.s") or torch.equal(value, before[name])
    assert network[1].weight.dtype == dtype


def test_a_copy_reads_its_own_shared_tensors() -> None:
    network = linears()
    LOOP.apply(network)
    fill(network)
    x = torch.randn(2, 5)
    twin, expected = copy.deepcopy(network), network(x)
    with torch.no_grad():
        network.shared_0_0.zero_()
        network.shared_0_1.zero_()
    torch.testing.assert_close(twin(x), expected)
    unshare(twin)
    torch.testing.assert_close(twin(x), expected)
    assert "weight" not in dict(network[0].named_parameters()), "unsharing the copy does not change the original"


def test_a_frozen_network_shares_frozen_tensors() -> None:
    network = linears().requires_grad_(False)
    LOOP.apply(network)
    assert not any(parameter.requires_grad for parameter in network.parameters())
    unshare(network)
    assert not any(parameter.requires_grad for parameter in network.parameters())


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, num_layers=3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.last = (nn.Linear(4, 4) for _ in range(3))
        self.again.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.again(self.first(x)))


@pytest.mark.parametrize(
    ("build", "weights"),
    [
        (_Recurrent, ("lstm.weight_hh_l0", "lstm.weight_hh_l1", "lstm.weight_ih_l2")),
        (_Tied, ("first.weight", "last.weight")),
        (lambda: nn.LSTM(4, 4, num_layers=2), ("weight_ih_l0", "weight_ih_l1")),
    ],
)
def test_unsharing_restores_plain_weights_in_their_order(
    build: Callable[[], nn.Module], weights: tuple[str, ...]
) -> None:
    torch.manual_seed(0)
    network, plain, x = build(), build(), torch.randn(2, 3, 4)
    edit = Share("shared_0", 1, weights, tuple((0,) for _ in weights))
    edit.apply(network)
    fill(network)
    outputs = [network(x) for _ in range(2)][1]
    expected = outputs[0] if isinstance(outputs, tuple) else outputs
    parameters = sum(p.numel() for p in network.parameters())
    assert parameters < sum(p.numel() for p in plain.parameters())
    copied = copy.deepcopy(network)(x)  # after a forward pass: nothing of the graph is kept
    unshare(network)
    assert list(network.state_dict()) == list(plain.state_dict())
    assert type(network) is type(plain)
    after = network(x)
    for found in (copied, after):
        torch.testing.assert_close(found[0] if isinstance(found, tuple) else found, expected)
    assert len(list(network.parameters())) == len(list(plain.parameters()))


def test_a_folded_network_is_recognized() -> None:
    network = linears()
    LOOP.apply(network)
    fill(network)
    (found,) = layer_similarity(network)
    assert found.layers == LOOP.weights
    with pytest.raises(ConfigError, match="the network is folded"):
        compress(network, SoftSharing(), steps=2)


MISFITS: list[tuple[Callable[[], nn.Module], Edit, str]] = [
    (linears, Scale("0.weights", 1), "scales '0.weights', which the network does not have"),
    (convolutions, KeepChannels("1", 7, ("0",)), "more than any"),
    (convolutions, KeepChannels("1", 4, ("0",)), "for 4 channels, but '0' has 6 on its out side"),
    (convolutions, KeepChannels("0", 6, ("0",)), "keeps 0 of 6 channels"),
    (convolutions, KeepChannels("41", 6, ("0",)), "keeps 2 of 6 channels"),
    (convolutions, KeepChannels("1", 6, ("9",)), "'9', which Sequential does not have"),
    (convolutions, KeepChannels("1", 6, (), ("1",)), "cuts the in side of '1', a BatchNorm2d"),
    (convolutions, KeepChannels("1", 6, ("2",)), "cuts the out side of '2', a ReLU"),
    (convolutions, QuantizeActivation(("9",), (1,)), "'9', which Sequential does not have"),
    (convolutions, QuantizeActivation(("0",), (1,)), "quantizes '0', a Conv2d, which is not an activation"),
    (convolutions, QuantizeActivation(("2", "1"), (1,)), "names 2, 1 as one module"),
    (convolutions, Share("shared_0", 1, ("0.weight", "3.weight"), ((0,), (0,))), "differ in shape or dtype"),
    (convolutions, Share("shared_0", 1, ("0.bias",), ((0,),)), "There is no weight 0.bias to share"),
    (linears, Share("shared_0", 1, ("3.weight",), ((0,),)), "There is no weight 3.weight to share"),
]


@pytest.mark.parametrize(("build", "edit", "words"), MISFITS)
def test_an_edit_that_does_not_fit_raises_without_a_change(
    build: Callable[[], nn.Module], edit: Edit, words: str
) -> None:
    model = build()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ConfigError, match=words):
        edit.check(ModelInfo(model))
    with pytest.raises(ArtefactError, match=f"does not fit this Sequential: .*{words}"), replayed(model, [edit]):
        pass
    assert str(model) == str(build())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not hasattr(model, "paretorch_edits")


@pytest.mark.parametrize(
    ("build", "edit"),
    [
        (linears, Scale("0.weight", 1)),
        (convolutions, CUT),
        (convolutions, QuantizeActivation(("2",), (6, 1, 1))),
        (linears, LOOP),
    ],
)
def test_checking_changes_nothing(build: Callable[[], nn.Module], edit: Edit) -> None:
    model = build()
    edit.check(ModelInfo(model))
    assert str(model) == str(build())
    assert model.state_dict().keys() == build().state_dict().keys()


def test_an_edit_cannot_be_made_twice() -> None:
    for build, edit, words in [
        (convolutions, CUT, "for 6 channels, but '0' has 4"),
        (convolutions, QuantizeActivation(("2",), (1,)), "not an activation"),
        (linears, LOOP, r"0\.weight is shared already"),
    ]:
        model = build()
        with pytest.raises(ArtefactError, match=words), replayed(model, [edit, edit]):
            pass
        assert str(model) == str(build())


def _golden() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4), nn.Linear(4, 4), nn.Linear(4, 4))


def test_an_old_file_with_untyped_edits_loads(tmp_path: Path) -> None:
    """golden/every_kind.pare has an edit of each kind, and was written when they were dicts."""
    path = Path(__file__).parent / "golden" / "every_kind.pare"
    model = load(path, into=_golden()).eval()
    assert model.paretorch_edits == [
        KeepChannels("2d", 6, ("0",), ("2",)),
        QuantizeActivation(("1",), (4,)),
        Share("shared_0", 1, ("3.weight", "4.weight"), ((0,), (0,))),
        Scale("0.weight", -2),
    ]
    expected = torch.tensor([[0.2485, -0.0645, 0.2634, -0.0231], [0.2761, -0.0843, 0.2262, -0.0088]])
    torch.testing.assert_close(model(torch.arange(6.0).view(2, 3) / 4), expected, atol=1e-4, rtol=0.0)
    save(model, tmp_path / "again.pare")
    (state, head), (stored, old) = open_artefact(tmp_path / "again.pare"), open_artefact(path)
    assert head["edits"] == old["edits"]
    assert list(state) == list(stored)  # type: ignore[call-overload]
    # Removed channels and shared tensors fit no other module of these shapes.
    with pytest.raises(ArtefactError, match="does not fit"):
        load(path, into=nn.Sequential(*_golden()[:4]))


def test_precisions_are_read_with_either_kind_of_edit() -> None:
    state = {"w": torch.tensor([[0.25, 0.75]])}
    for edits in ([Scale("w", -1)], [{"kind": "scale", "weight": "w", "exponent": -1}]):
        found = precision_map(state, edits)
        assert found.bits["w"].tolist() == [[2, 2]]
        assert found.exponents == {"w": -1}
    with pytest.raises(ArtefactError, match="Unknown structural edit"):
        precision_map(state, [{"kind": "resize"}])
