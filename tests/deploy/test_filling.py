"""From a file into a module: tied tensors, tensors that share memory, extra state, any memory format."""

from __future__ import annotations

import copy
import sys
import tracemalloc
import warnings
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paretorch as pt
from paretorch.deploy import load, save
from paretorch.edits import Scale
from paretorch.errors import ArtefactError, ConfigError


class Two(nn.Module):
    """Two Linear layers, of which the second may have the weight of the first."""

    def __init__(self, outputs: int = 4, tied: bool = False) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, outputs, bias=False)
        if tied:
            self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(self.a(x))
        return out


class Kept(nn.Module):
    """A weight and, as a buffer, the same memory."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))
        self.register_buffer("start", self.weight.data if shared else torch.zeros(3, 4))


class Counting(nn.Linear):
    """A layer with a state of its own beside its tensors."""

    def __init__(self, seen: int) -> None:
        super().__init__(2, 2)
        self.seen = seen

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.seen)

    def set_extra_state(self, state: Tensor) -> None:
        self.seen = int(state)


class Shared(nn.Module):
    """A batch norm under two names, and two whose weights are one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.BatchNorm1d(4)
        self.again = self.first
        self.left, self.right = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
        self.right.weight = self.left.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.right(self.left(self.again(self.first(x))))
        return out


@pytest.mark.parametrize("shared", [True, False])
def test_a_parameter_and_a_buffer_in_one_memory(shared: bool, tmp_path: Path) -> None:
    model = Kept(shared=True)
    save(model, tmp_path / "x.pare")
    found = load(tmp_path / "x.pare", into=Kept(shared))
    assert torch.equal(found.weight, model.weight)
    assert torch.equal(found.start, model.weight)
    assert isinstance(found.weight, nn.Parameter)


def test_extra_state_is_given_to_its_module(tmp_path: Path) -> None:
    """It is made anew whenever it is asked for, so that nobody reads what is written into it."""
    save(nn.Sequential(Counting(5), Counting(7)), tmp_path / "x.pare")
    again = nn.Sequential(Counting(0), Counting(0))
    load(tmp_path / "x.pare", into=again)
    assert [layer.seen for layer in again] == [5, 7]


def test_ties_do_not_change_shapes(tmp_path: Path) -> None:
    save(Two(tied=True), tmp_path / "x.pare")
    model = Two(outputs=3)
    before = model.b.weight
    with pytest.raises(ArtefactError, match=r"b.weight and a.weight are tied in the file; in the module .*\(3, 4\)"):
        load(tmp_path / "x.pare", into=model)
    assert model.b.weight is before
    assert model(torch.zeros(1, 4)).shape == (1, 3)
    other = Two()
    other.b.double()
    with pytest.raises(ArtefactError, match=r"tied in the file; in the module they are torch\.float64"):
        load(tmp_path / "x.pare", into=other)


@pytest.mark.parametrize("options", [{}, {"norms": torch.bfloat16}, {"fold_norms": True}])
def test_shared_norms_stay_shared(options: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Shared()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.uniform_(0.5, 1.5)
        for _ in range(3):
            model(torch.randn(16, 4) + 1)
    model.eval()
    save(model, tmp_path / "x.pare", **options)
    found = load(tmp_path / "x.pare", into=Shared()).eval()
    x = torch.randn(8, 4)
    within = 5e-2 if "norms" in options else 1e-5
    torch.testing.assert_close(found(x), model(x), atol=within, rtol=within)
    assert found.again is found.first
    assert found.right.weight is found.left.weight


def test_a_module_is_filled_in_place(tmp_path: Path) -> None:
    """However large a tensor is, there is never a second copy of it."""
    model = nn.Module()
    model.weight = nn.Parameter(2.0 * torch.randint(0, 2, (2000, 1000)) - 1)
    save(model, tmp_path / "x.pare")
    into = copy.deepcopy(model)
    into.weight.data.zero_()
    memory, version = into.weight.data_ptr(), into.weight._version
    tracemalloc.start()
    load(tmp_path / "x.pare", into=into)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < model.weight.nbytes // 2
    assert torch.equal(into.weight, model.weight)
    assert into.weight.data_ptr() == memory
    assert into.weight._version > version, "autograd must know"


def test_memory_of_any_order_is_filled(tmp_path: Path) -> None:
    torch.manual_seed(0)
    image = torch.randn(2, 3, 4, 5)
    for given in (image, image.bfloat16(), image > 0, (image * 9).to(torch.int8), image.sign(), image.new_tensor(7.0)):
        orders = [given.clone(), given.mT.contiguous().mT] if given.dim() else [given.clone()]
        orders += [given.clone(memory_format=torch.channels_last)] if given.dim() else []
        with torch.inference_mode():
            orders.append(given.clone())
        for stored in orders:
            model, into = nn.Module(), nn.Module()
            model.register_buffer("x", stored)
            save(model, tmp_path / "x.pare")
            for order in orders:
                into.register_buffer("x", torch.zeros_like(order))
                assert torch.equal(load(tmp_path / "x.pare", into=into).x, given)
                assert into.x.stride() == torch.zeros_like(order).stride()


def _cut(bits: float | None) -> nn.Sequential:
    """Half of the hidden units gone, and the rest of few bits, or as they were."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    methods: list[Any] = [pt.ContinuousSparsification(target=0.5, group="channel")]
    methods += [] if bits is None else [pt.SMOL(target_bits=bits)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = pt.compress(model, *methods, steps=2, example=torch.randn(2, 4))
        plan.harden()
    return plan.finalize()


def test_files_one_after_the_other_into_one_module(tmp_path: Path) -> None:
    """What the module says of its grids is what the last file said; what it lost is known whatever a file says."""
    fine, coarse = _cut(bits=None), _cut(bits=2.0)
    plain = copy.deepcopy(fine)
    del plain.paretorch_edits
    for name, model in {"fine": fine, "coarse": coarse, "plain": plain}.items():
        save(model, tmp_path / name)
    structure = fine.paretorch_edits
    assert structure == [edit for edit in coarse.paretorch_edits if not isinstance(edit, Scale)]
    assert structure != coarse.paretorch_edits
    into = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    for name, edits in {"fine": structure, "coarse": coarse.paretorch_edits, "plain": structure}.items():
        load(tmp_path / name, into=into)
        assert into.paretorch_edits == edits
    load(tmp_path / "coarse", into=into)
    assert torch.equal(into[0].weight, coarse[0].weight)
    save(into, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "coarse").read_bytes()


def test_what_repeats_its_memory_cannot_be_filled(tmp_path: Path) -> None:
    model = nn.Module()
    model.register_buffer("mean", torch.ones(1).expand(5))
    save(model, tmp_path / "x.pare")
    with pytest.raises(ConfigError, match=r"mean repeats its memory, as after expand\(\)"):
        load(tmp_path / "x.pare", into=model)


def test_lazy_layers_have_nothing_to_save_or_fill(tmp_path: Path) -> None:
    save(nn.Linear(4, 3), tmp_path / "x.pare")
    for use in (lambda: save(nn.LazyLinear(3), tmp_path / "y"), lambda: load(tmp_path / "x.pare", nn.LazyLinear(3))):
        with pytest.raises(ConfigError, match="weight has no shape yet: run it on a batch first"):
            use()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_module_is_saved(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 3))
    save(torch.jit.script(model), tmp_path / "x.pare")
    assert torch.equal(load(tmp_path / "x.pare", into=nn.Sequential(nn.Linear(4, 3)))[0].weight, model[0].weight)


def test_what_is_no_json_is_said_whatever_is_wrong_with_it(tmp_path: Path) -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(ConfigError, match="summary"):
        save(nn.Linear(2, 2), tmp_path / "x.pare", summary=deep)
    model = nn.Linear(2, 2)
    model.zoo_name, model.zoo_options = "resnet20", 3  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="zoo_options=3"):
        save(model, tmp_path / "x.pare")


def test_a_zoo_network_is_loaded_without_torch_s_compiler(tmp_path: Path) -> None:
    """Its import takes seconds, and drawing weights on the meta device would bring it."""
    code = (
        "import sys, paretorch as pt; from paretorch import zoo; "
        "pt.save(zoo.build('resnet20', width=4), sys.argv[1]); pt.load(sys.argv[1]); "
        "print('torch._dynamo' in sys.modules)"
    )
    done = run([sys.executable, "-c", code, str(tmp_path / "x.pare")], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_values_are_rounded_to_the_dtype_of_the_module(dtype: torch.dtype, tmp_path: Path) -> None:
    """As torch's load_state_dict does it, in either direction; whole numbers and real ones do not convert."""
    whole = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    save(whole, tmp_path / "x.pare")
    found = load(tmp_path / "x.pare", into=nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(dtype))
    expected = copy.deepcopy(whole).to(dtype).state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in found.state_dict().items())
    assert found[0].weight.dtype == dtype
    wrong = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    wrong[1].num_batches_tracked = torch.tensor(0.0)
    with pytest.raises(ArtefactError, match=r"num_batches_tracked is torch.int64 \(\) in the file and torch.float32"):
        load(tmp_path / "x.pare", into=wrong)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_module_without_memory_gets_some(dtype: torch.dtype, tmp_path: Path) -> None:
    """Ties of the module and of the file, buffers and frozen parameters are as in a module that had memory."""
    model = Two(tied=True)
    model.a.register_buffer("scale", torch.tensor([2.0]))
    model.a.weight.requires_grad_(False)
    save(model, tmp_path / "x.pare")
    for tied in (True, False):
        with torch.device("meta"):
            bare = Two(tied=tied).to(dtype)
            bare.a.register_buffer("scale", torch.empty(1, dtype=dtype))
        bare.a.weight.requires_grad_(False)
        assert load(tmp_path / "x.pare", into=bare) is bare
        assert torch.equal(bare.a.weight, model.a.weight.to(dtype))
        assert bare.b.weight is bare.a.weight
        assert isinstance(bare.a.weight, nn.Parameter)
        assert not bare.a.weight.requires_grad
        assert torch.equal(bare.a.scale, model.a.scale.to(dtype))
        assert bare(torch.ones(1, 4, dtype=dtype)).device.type == "cpu"


def test_a_damaged_file_gives_no_memory(tmp_path: Path) -> None:
    save(Two(), tmp_path / "x.pare")
    with torch.device("meta"):
        bare = Two(outputs=3)
    with pytest.raises(ArtefactError, match=r"b\.weight is torch\.float32"):
        load(tmp_path / "x.pare", into=bare)
    assert all(one.is_meta for one in bare.parameters())
