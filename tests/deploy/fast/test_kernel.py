"""The kernel against the dequantized weight: on a GPU where there is one, else through Triton's interpreter."""

from __future__ import annotations

import copy
import os

import numpy as np
import pytest
import torch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
pytest.importorskip("triton")
if DEVICE == "cpu" and np.lib.NumpyVersion(np.__version__) >= "2.4.0":
    pytest.skip("Triton's interpreter needs numpy below 2.4", allow_module_level=True)

from paretorch.deploy.fast import PackedLinear, optimize  # noqa: E402
from paretorch.deploy.fast import launch as _launch  # noqa: E402
from paretorch.deploy.fast.launch import SETTINGS, Tuning  # noqa: E402
from paretorch.deploy.fast.packing import Order, pack  # noqa: E402
from tests.deploy.fast.grids import by_block, by_channel, on_the_grid  # noqa: E402

TILE = (32, 128)
ROUNDING = 2.0**-7  # of bf16, cut off by the interpreter where a GPU rounds


@pytest.fixture(autouse=True)
def _kernel_everywhere(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setattr(_launch, "runs_on", lambda device: True)


def check(bits: torch.Tensor, batch: int, splits: int, bias: bool = True) -> PackedLinear:
    weight = on_the_grid(bits).to(DEVICE)
    offset = torch.linspace(-1, 1, len(bits)).bfloat16() if bias else None
    layer = PackedLinear(pack(weight, *TILE), offset).to(DEVICE)
    layer.tuning = Tuning(warps=2, splits=splits)
    x = torch.randn(batch, bits.shape[1], generator=torch.Generator().manual_seed(1)).bfloat16().to(DEVICE)
    wanted = x.float() @ weight.T + (offset.to(DEVICE).float() if offset is not None else 0.0)
    for _ in range(2):  # the second launch finds the tickets as the first left them
        got = layer(x)
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got.float(), wanted, rtol=ROUNDING, atol=1e-4 * float(wanted.abs().max()))
    return layer


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("batch", "splits"), [(1, 1), (1, 3), (5, 2), (16, 2)])
def test_one_width(bits, batch, splits) -> None:
    check(torch.full((70, 300), bits), batch, splits)


def test_pieces_of_the_one_row_that_meet_other_weights_leave_no_trace() -> None:
    """A product sees all pieces of x and keeps one: what the others give may be anything, here infinite."""
    weight = on_the_grid(torch.full((32, 128), 2)).to(DEVICE)
    layer = PackedLinear(pack(weight, *TILE)).to(DEVICE)
    x = torch.zeros(1, 128, dtype=torch.bfloat16, device=DEVICE)
    x[0, 17] = torch.inf
    assert torch.equal(layer(x).float()[0], torch.inf * weight[:, 17].sign())


@pytest.mark.parametrize("batch", [1, 9])
def test_channels_of_several_widths(batch) -> None:
    layer = check(by_channel(150, 260, (0, 2, 4, 8)), batch, 2)
    assert layer.order is Order.REGULAR


@pytest.mark.parametrize(("batch", "splits"), [(1, 1), (1, 2), (3, 2)])
def test_blocks_of_several_widths(batch, splits) -> None:
    layer = check(by_block(130, 520, TILE, (0, 2, 4, 8), seed=3), batch, splits)
    assert layer.order is Order.FREE


def test_the_plain_grid_and_no_bias() -> None:
    bits = by_channel(64, 256, (1, 3, 7)) * torch.randint(2, (64, 256), generator=torch.Generator().manual_seed(0))
    layer = check(bits, 2, 1, bias=False)
    assert not layer.odd


def test_inputs_that_fill_no_tile_and_leading_dimensions() -> None:
    weight = on_the_grid(torch.full((3, 5), 4)).to(DEVICE)
    layer = PackedLinear(pack(weight, *TILE)).to(DEVICE)
    x = torch.randn(2, 3, 5).bfloat16().to(DEVICE)
    torch.testing.assert_close(layer(x).float(), x.float() @ weight.T, rtol=ROUNDING, atol=1e-3)


@pytest.mark.parametrize("setting", {setting.tile: setting for setting in SETTINGS}.values(), ids=str)
def test_tiles_as_they_are_chosen(setting) -> None:
    weight = on_the_grid(torch.full((70, 600), 2)).to(DEVICE)
    layer = PackedLinear(pack(weight, *setting.tile)).to(DEVICE)
    x = torch.randn(1, 600).bfloat16().to(DEVICE)
    torch.testing.assert_close(layer(x).float(), x.float() @ weight.T, rtol=ROUNDING, atol=1e-2)


def test_runs_repeat_bit_for_bit() -> None:
    layer = check(torch.full((64, 512), 4), 2, 4)
    x = torch.randn(2, 512).bfloat16().to(DEVICE)
    assert torch.equal(layer(x), layer(x))


def test_optimize_chooses_it_if_the_timer_says_so(monkeypatch) -> None:
    """On a CPU the choice of the kind is made as on a GPU; the times are given."""
    from paretorch.deploy.fast import replacements

    def timer(calls: dict) -> dict[str, list[float]]:
        given = {"dense": 2.0, "packed": 1.0, "before": 3.0, "after": 2.0, str(SETTINGS[2]): 0.5}
        return {name: [given.get(name, 0.8)] * 4 for name in calls}

    monkeypatch.setattr(replacements, "_cpu_layers", lambda a, b: [replacements._packed_layer(a, b, timer)])
    model = nn.Sequential(nn.Linear(130, 70), nn.ReLU()).to(DEVICE, torch.bfloat16)
    with torch.no_grad():
        model[0].weight.copy_(on_the_grid(torch.full((70, 130), 4)))
    x = torch.randn(2, 130).bfloat16().to(DEVICE)
    fast, summary = optimize(model, x, timer=timer)
    assert isinstance(fast[0], PackedLinear)
    assert fast[0].tuning == SETTINGS[2].tuning
    assert summary.choices[0].chosen == "packed"
    assert f"2.0 × faster ({SETTINGS[2]}: the best of {len(SETTINGS)})" in summary.choices[0].reason
    many = torch.randn(17, 130).bfloat16().to(DEVICE)
    assert "17 rows" in optimize(model, many, timer=lambda calls: {}).summary.choices[0].reason


def test_a_changed_layer_uses_its_new_values() -> None:
    layer, other = (check(by_channel(64, 128, widths), 2, 1) for widths in ((2, 8), (4,)))
    x = torch.randn(2, 128).bfloat16().to(DEVICE)
    layer.load_state_dict(other.state_dict())
    assert torch.equal(layer(x), other(x))
    assert torch.equal(copy.deepcopy(layer)(x), other(x))


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_replayed_from_a_graph() -> None:
    layer = check(torch.full((4096, 1024), 4), 1, 8)
    x = torch.randn(1, 1024, device=DEVICE).bfloat16()
    layer(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(x)
    for _ in range(3):
        x.copy_(torch.randn(1, 1024, device=DEVICE))
        graph.replay()
        assert torch.equal(out, layer(x))


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("bits", [2, 4])
def test_all_settings_on_a_gpu(setting, bits) -> None:
    weight = on_the_grid(torch.full((4096, 2048), bits)).to(DEVICE)
    layer = PackedLinear(pack(weight, *setting.tile)).to(DEVICE)
    layer.tuning = setting.tuning
    x = torch.randn(1, 2048, device=DEVICE).bfloat16()
    wanted = x.float() @ weight.T
    torch.testing.assert_close(layer(x).float(), wanted, rtol=ROUNDING, atol=1e-3 * float(wanted.abs().max()))


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("graphs", [True, False])
def test_optimize_with_the_clock_of_a_gpu(graphs) -> None:
    model = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 64)).to(DEVICE, torch.bfloat16)
    with torch.no_grad():
        model[0].weight.copy_(on_the_grid(by_channel(4096, 4096, (2, 4)), 2.0**-6))
    x = torch.randn(1, 4096, device=DEVICE).bfloat16()
    fast, summary = optimize(model, x, graphs=graphs, rounds=3)
    assert (fast is model) == (not summary.changed)
    assert "packed" in summary.choices[0].milliseconds
    assert "not on a grid" in summary.choices[1].reason
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=0.02, atol=0.02)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("batch", [1, 4])
def test_kernels_that_start_early_see_what_was_written_before(batch) -> None:
    first, second = (check(torch.full((512, 512), bits), batch, 2) for bits in (4, 2))
    x = torch.randn(batch, 512, device=DEVICE).bfloat16()
    wanted = [second(first(x * i).relu()) for i in range(1, 9)]
    first.tuning = second.tuning = Tuning(early=True)
    first(x), second(x)
    got = [second(first(x * i).relu()) for i in range(1, 9)]
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=ROUNDING, atol=1e-2 * float(b.abs().max()))
