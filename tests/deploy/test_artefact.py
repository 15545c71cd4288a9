"""save and load: every bit, every dtype, ties, edits, the zoo, and files that do not fit."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn

from paretorch.deploy import encoded_size, load, save, sizes
from paretorch.deploy.codec import grids
from paretorch.edits import Scale
from paretorch.errors import ArtefactError, ConfigError
from tests.deploy.nets import network, smol


def bits(tensor: Tensor) -> np.ndarray:
    """The bit patterns, with negative zero as zero."""
    tensor = torch.where(tensor == 0, torch.zeros_like(tensor), tensor) if tensor.is_floating_point() else tensor
    return np.frombuffer(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes(), dtype=np.uint8)


class Bag(nn.Module):
    """A module of given tensors and nothing else."""

    def __init__(self, **tensors: Tensor) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    @classmethod
    def like(cls, other: Bag) -> Bag:
        return cls(**{name: torch.zeros_like(tensor) for name, tensor in other.state_dict().items()})


def roundtrip(model: nn.Module, path: Path, into: nn.Module) -> dict[str, Tensor]:
    total = save(model, path).total
    assert total == path.stat().st_size
    return load(path, into=into).state_dict()


def test_a_network_is_restored_bit_for_bit(tmp_path: Path) -> None:
    model = network()
    back = roundtrip(model, tmp_path / "net.pare", into=network())
    for name, tensor in model.state_dict().items():
        assert (bits(tensor) == bits(back[name])).all(), name
    x = torch.randn(2, 3, 4, 4)
    assert torch.equal(model.eval()(x), load(tmp_path / "net.pare", into=network()).eval()(x))


FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (3,), (7, 5), (70, 30)])
def test_every_dtype_and_shape(dtype: torch.dtype, shape: tuple[int, ...], tmp_path: Path) -> None:
    width = 1 if dtype == torch.bool else dtype.itemsize
    raw = torch.randint(0, 256, (width * math.prod(shape),), dtype=torch.uint8)
    random = (raw > 99 if dtype == torch.bool else raw.view(dtype)).reshape(shape)
    model = Bag(random=random, ones=torch.ones(shape, dtype=dtype), sparse=random * (random > 0))
    back = roundtrip(model, tmp_path / "bag.pare", into=Bag.like(model))
    for name, tensor in model.state_dict().items():
        assert back[name].dtype == dtype
        assert back[name].shape == shape
        assert (bits(tensor) == bits(back[name])).all()


SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, 1e-38, 3.4e38, 2.0**-126, 65536.0, 65535.5, 2.0**-60]


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(width=32) | st.sampled_from(SPECIAL) | st.integers(-9, 9).map(float), max_size=40),
    repeat=st.integers(1, 3),
    shift=st.integers(-140, 100),
)
def test_any_floats_are_restored(
    values: list[float], repeat: int, shift: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    scaled = torch.tensor(values * repeat, dtype=torch.float32) * 2.0**shift
    model = Bag(plain=torch.tensor(values * repeat), scaled=scaled)
    back = roundtrip(model, tmp_path_factory.mktemp("floats") / "bag.pare", into=Bag.like(model))
    assert (bits(model.plain) == bits(back["plain"])).all()
    assert (bits(model.scaled) == bits(back["scaled"])).all()


@settings(max_examples=80, deadline=None)
@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple),
    axis=st.integers(-1, 3),
    exponent=st.integers(-6, 6),
    dtype=st.sampled_from(FLOATS),
    seed=st.integers(0, 2**16),
)
def test_any_grid_is_restored(
    shape: tuple[int, ...],
    axis: int,
    exponent: int,
    dtype: torch.dtype,
    seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Precisions that differ weight by weight, or along one axis only; wide last dimension, so that classes pay."""
    generator = torch.Generator().manual_seed(seed)
    shape = (*shape[:-1], 8 * shape[-1])
    varied = [length if axis in (-1, i) else 1 for i, length in enumerate(shape)]
    precision = torch.randint(0, 5, varied, generator=generator).expand(shape)
    model = Bag(w=smol(torch.randn(shape, generator=generator), precision, exponent).to(dtype))
    back = roundtrip(model, tmp_path_factory.mktemp("grid") / "bag.pare", into=Bag.like(model))["w"]
    assert (bits(model.w) == bits(back)).all()


def test_negative_zero_becomes_zero(tmp_path: Path) -> None:
    model = Bag(w=torch.tensor([-0.0, 1.5, -0.5]))
    back = roundtrip(model, tmp_path / "zero.pare", into=Bag.like(model))["w"]
    assert math.copysign(1.0, float(back[0])) == 1.0


def test_same_module_same_bytes(tmp_path: Path) -> None:
    save(network(), tmp_path / "a.pare", summary={"b": 1, "a": [2.5, "x"]})
    save(network(), tmp_path / "b.pare", summary={"a": [2.5, "x"], "b": 1})
    assert (tmp_path / "a.pare").read_bytes() == (tmp_path / "b.pare").read_bytes()


def test_the_size_is_the_file(tmp_path: Path) -> None:
    model = network()
    written = save(model, tmp_path / "net.pare")
    assert encoded_size(model.state_dict()) == sizes(model).total == written.total
    assert written.codes + written.masks + written.maps + written.rest == pytest.approx(written.total)


def test_precisions_are_read_from_the_values() -> None:
    precision = torch.randint(0, 6, (40, 50))
    weight = smol(torch.randn(40, 50), precision, exponent=3)
    found = sizes({"w": weight}).tensors["w"]
    assert found.precisions == {p: int((precision == p).sum()) for p in range(6)}
    assert found.zeros == int((precision == 0).sum())


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.95])
def test_the_entropy_bound_holds(sparsity: float) -> None:
    torch.manual_seed(1)
    precision = torch.randint(1, 4, (300, 300)) * (torch.rand(300, 300) >= sparsity)
    weight = smol(torch.randn(300, 300), precision)
    _, counts = np.unique(weight.numpy(), return_counts=True)
    entropy = -(counts * np.log2(counts / counts.sum())).sum() / 8
    assert encoded_size({"w": weight}) <= 1.01 * entropy + 300


class Tied(nn.Module):
    def __init__(self, tie: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        if tie:
            self.head.weight = self.embed.weight


def test_tied_tensors_are_stored_once_and_tied_again(tmp_path: Path) -> None:
    tied = Tied(tie=True)
    assert save(tied, tmp_path / "tied.pare").dense == 6 * 4 * 4
    for target in (Tied(tie=True), Tied(tie=False)):
        loaded = load(tmp_path / "tied.pare", into=target)
        assert loaded.head.weight is loaded.embed.weight
        assert torch.equal(loaded.head.weight, tied.head.weight)


def test_two_tensors_cannot_fill_a_tied_one(tmp_path: Path) -> None:
    save(Tied(tie=False), tmp_path / "free.pare")
    with pytest.raises(ArtefactError, match="one tensor in the module and two in the file"):
        load(tmp_path / "free.pare", into=Tied(tie=True))


def test_buffers_that_are_not_persistent_stay_out(tmp_path: Path) -> None:
    model = Bag(w=torch.ones(3))
    model.register_buffer("scratch", torch.full((3,), 7.0), persistent=False)
    assert set(save(model, tmp_path / "bag.pare").tensors) == {"w"}


def test_edits_are_kept_and_unknown_ones_refused(tmp_path: Path) -> None:
    model = network()
    model.paretorch_edits = [{"kind": "scale", "weight": "0.weight", "exponent": -2}]
    save(model, tmp_path / "net.pare")
    assert load(tmp_path / "net.pare", into=network()).paretorch_edits == [Scale("0.weight", -2)]
    for wrong in ({"kind": "exec", "weight": "0.weight"}, {"kind": "scale", "weight": 3, "exponent": 1}, {}, "scale"):
        model.paretorch_edits = [wrong]
        with pytest.raises(ArtefactError):
            save(model, tmp_path / "net.pare")


def test_misfits_are_named(tmp_path: Path) -> None:
    save(nn.Linear(4, 3), tmp_path / "net.pare")
    for target, words in [
        (nn.Linear(4, 3, bias=False), "has bias too many"),
        (nn.Sequential(nn.Linear(4, 3)), "lacks 0.bias, 0.weight and has bias, weight"),
        (nn.Linear(5, 3), r"weight is torch.float32 \(3, 4\) in the file"),
        (nn.Linear(4, 3).to(torch.complex64), "torch.complex64"),
    ]:
        with pytest.raises(ArtefactError, match=words):
            load(tmp_path / "net.pare", into=target)
    with pytest.raises(ArtefactError, match="into="):
        load(tmp_path / "net.pare")


def test_what_cannot_be_saved_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="complex64"):
        save(Bag(z=torch.zeros(2, dtype=torch.complex64)), tmp_path / "x.pare")
    with pytest.raises(ConfigError, match="JSON"):
        save(network(), tmp_path / "x.pare", summary={"x": object()})
    with pytest.raises(ConfigError, match="meta"):
        save(nn.Linear(2, 2, device="meta"), tmp_path / "x.pare")
    assert not list(tmp_path.iterdir())


def test_rows_of_one_precision_cost_their_codes_only() -> None:
    torch.manual_seed(0)
    precision = torch.tensor([0, 1, 2, 3, 4] * 20)[torch.randperm(100)][:, None].expand(100, 400)
    weight = smol(2 * torch.rand(100, 400) - 1, precision)
    found = sizes({"w": weight}).tensors["w"]
    assert found.masks == 0.0
    assert found.maps < 100
    assert found.codes <= float(precision.sum()) / 8 * 1.01
    by_input = sizes({"w": weight.T.contiguous()}).tensors["w"]
    assert by_input.total == pytest.approx(found.total, rel=0.01)


def test_taps_may_differ() -> None:
    torch.manual_seed(0)
    weight = smol(torch.randn(40, 40, 3, 3), torch.full((40, 40, 3, 3), 2))
    weight[:, :, 0] *= torch.rand(40, 40, 3) > 0.95
    _, counts = np.unique(weight.numpy(), return_counts=True)
    entropy = -(counts * np.log2(counts / counts.sum())).sum() / 8
    assert sizes({"w": weight}).tensors["w"].total < 0.9 * entropy


def test_small_layers_of_many_precisions_need_no_large_table() -> None:
    torch.manual_seed(0)
    weight = smol(torch.randn(16, 16, 3, 3), torch.randint(0, 9, (16, 16, 3, 3)))
    found = sizes({"w": weight}).tensors["w"]
    assert found.coding == "grid"
    assert found.rest < 40
    assert found.total < 2304 * (math.log2(9) + 4.0) / 8 + 40  # which precision, uniform, and its code


def test_few_distinct_values_make_a_book() -> None:
    weight = torch.randn(16)[torch.randint(0, 16, (50, 80))]
    found = sizes({"w": weight}).tensors["w"]
    assert found.coding == "book"
    assert found.total < 50 * 80 / 2 * 1.05 + 100


@pytest.mark.parametrize("axis", [0, 1])
def test_a_step_a_channel_costs_its_codes(axis: int, tmp_path: Path) -> None:
    shape = [1, 1, 1, 1]
    shape[axis] = 32
    steps = torch.rand(shape) + 0.1
    weight = torch.randint(-1, 3, (32, 32, 3, 3)).float() * steps  # two bits, as LSQ and uniform grids give them
    found = sizes({"w": weight}).tensors["w"]
    assert found.coding == "steps"
    assert found.total < weight.numel() * 2 / 8 * 1.02 + 32 * 4 + 60
    again = roundtrip(Bag(w=weight), tmp_path / "x.pare", Bag(w=torch.zeros_like(weight)))
    assert np.array_equal(bits(again["w"]), bits(weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_search_ends_at_the_first_row_without_a_step(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where it could not pay, nor in the other rows once a row has none: a search in each takes seconds."""
    searched = []
    for name in ("_fit", "_guesses"):
        search = getattr(grids, name)
        monkeypatch.setattr(grids, name, lambda *args, search=search: searched.append(args) or search(*args))
    torch.manual_seed(0)
    single = torch.randn(1_000, 1).to(dtype)
    twice = torch.randint(-8, 8, (1_000, 64)) * 0.1 * torch.rand(1_000, 1)  # rounded twice
    assert encoded_size({"single": single}) < single.nbytes
    assert encoded_size({"twice": twice}) < twice.nbytes
    assert len(searched) < 100


def test_a_zoo_network_is_rebuilt_by_name(tmp_path: Path) -> None:
    from paretorch.zoo import build

    model = build("resnet20", classes=7).eval()
    save(model, tmp_path / "net.pare")
    loaded = load(tmp_path / "net.pare")
    assert type(loaded) is type(model)
    assert not loaded.training
    x = torch.randn(1, 3, 32, 32)
    assert torch.equal(loaded(x), model(x))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_files_of_old_versions_keep_loading(version: int) -> None:
    """golden/v*.pare were written when their format was fixed; values.safetensors holds the same tensors plainly."""
    from .hostile import Mixed

    golden = Path(__file__).parent / "golden"
    expected = load_file(golden / "values.safetensors")
    fresh = Mixed(version)
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.zero_()
    loaded = load(golden / f"v{version}.pare", into=fresh).state_dict()
    assert set(loaded) == set(fresh.state_dict())
    for name, tensor in loaded.items():
        assert torch.equal(expected[name], tensor), name


def test_a_module_that_does_not_fit_does_not_change(tmp_path: Path) -> None:
    save(nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)), tmp_path / "net.pare")
    other = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2))  # only the last tensors differ
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    with pytest.raises(ArtefactError, match=r"1.weight is torch.float32 \(3, 5\) in the file"):
        load(tmp_path / "net.pare", into=other)
    assert all(torch.equal(before[name], tensor) for name, tensor in other.state_dict().items())


def test_deploy_is_imported_without_its_dependencies() -> None:
    heavy = ("constriction", "safetensors", "onnx", "onnxruntime", "onnxscript", "rich")
    code = f"import sys, paretorch.deploy; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
