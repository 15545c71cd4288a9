"""Many networks trained at once are the networks trained one by one."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import paretorch

FOLDER = Path(__file__).parents[3] / "benchmarks"
SETTINGS = [(0.3, 1e-8), (0.01, 0.1), (2.0, 1e-3)]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


grid = load("optimizer_grid")
replay = load("optimizer_replay")


class Single(nn.Module):
    """The network of the benchmark, written with torch's layers."""

    def __init__(self, channels: int, classes: int, width: int) -> None:
        super().__init__()
        widths = [width, width, 2 * width, 2 * width, 4 * width, 4 * width]
        sources = [channels, *widths[:-1]]
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, 3, 2 - i % 2, 1, bias=False) for i, (a, b) in enumerate(zip(sources, widths, strict=True))
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for b in widths)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            out = norm(conv(x))
            x = (x + out if i % 2 else out).relu()
        return self.head(x.mean((2, 3)))

    def row(self, take: str) -> Tensor:
        """Weights or gradients in the order of the benchmark's rows."""

        def of(p: Tensor) -> Tensor:
            return p.detach() if take == "weight" else p.grad

        convs = [of(conv.weight).permute(2, 3, 1, 0).flatten() for conv in self.convs]
        norms = [torch.cat((of(norm.weight), of(norm.bias))) for norm in self.norms]
        return torch.cat([*convs, *norms, of(self.head.weight).T.flatten(), of(self.head.bias)])


def test_every_row_is_a_network_of_its_own() -> None:
    torch.manual_seed(0)
    networks = grid.Networks(3, 5, width=4)
    singles = [Single(3, 5, 4) for _ in range(3)]
    flat = torch.stack([single.row("weight") for single in singles]).requires_grad_()
    assert flat.shape[1] == sum(networks.sizes)
    x, y = torch.randn(6, 3, 11, 11), torch.randint(5, (6,))
    logits, stats = networks.logits(flat, x.movedim(1, 3))
    (gradient,) = torch.autograd.grad(grid._losses(logits, y).sum(), flat)
    for i, single in enumerate(singles):
        expected = single(x)
        torch.testing.assert_close(logits[i], expected, rtol=1e-4, atol=1e-5)
        F.cross_entropy(expected, y).backward()
        torch.testing.assert_close(gradient[i], single.row("grad"), rtol=1e-3, atol=1e-5)
    again, _ = networks.logits(flat, x.movedim(1, 3), stats)
    torch.testing.assert_close(again, logits)


@pytest.mark.parametrize("kind", ["Adam", "AvaGrad"])
def test_every_row_takes_the_step_of_the_real_optimizer(kind) -> None:
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(3, 40, generator=generator)
    flat[:, 7] = 0
    rows = [row.clone().requires_grad_() for row in flat]
    real = torch.optim.Adam if kind == "Adam" else paretorch.AvaGrad
    optimizers = [real([w], lr=lr, eps=eps, weight_decay=0.01) for w, (lr, eps) in zip(rows, SETTINGS, strict=True)]
    alphas, epsilons = torch.tensor(SETTINGS).T
    rule = getattr(grid, kind)(flat, epsilons, 0.01)
    for step in range(6):
        g = torch.randn(3, 40, generator=generator) * 10.0 ** torch.randint(-4, 2, (3, 40), generator=generator)
        g[:, 7] = 0  # never a gradient, and no weight that would decay
        g[:, 8] *= step > 2
        rule.step(flat, g, alphas)
        for row, w, optimizer in zip(g, rows, optimizers, strict=True):
            w.grad = row.clone()
            optimizer.step()
    torch.testing.assert_close(flat, torch.stack([w.detach() for w in rows]), rtol=1e-4, atol=1e-5)


def test_the_schedule_of_the_thesis_made_shorter() -> None:
    assert [grid.schedule(step, 10) for step in (0, 2, 3, 6, 8)] == pytest.approx([1, 1, 0.2, 0.04, 0.008])


def run(module: ModuleType, monkeypatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, words)])
    module.main()


def test_from_the_grid_to_the_pictures(tmp_path, monkeypatch, capsys) -> None:
    raw = tmp_path / "raw.json"
    words = ["--device", "cpu", "--data", "digits", "--every", 10, "--width", 2, "--epochs", 1, "--at-once", 5]
    words += ["--no-compile", "--json", raw]
    run(grid, monkeypatch, *words, "--optimizers", "AvaGrad")
    first = json.loads(raw.read_text())
    run(grid, monkeypatch, *words)
    content = json.loads(raw.read_text())
    assert content["grids"]["AvaGrad"] == first["grids"]["AvaGrad"], "not trained again"
    assert np.array(content["grids"]["Adam"]["error"]).shape == (3, 3)
    assert content["grids"]["Adam"]["alphas"] == [5e-7, 0.05, 5000]
    with pytest.raises(SystemExit, match="other options"):
        run(grid, monkeypatch, *words, "--seed", 1)
    run(replay, monkeypatch, raw, "--repetitions", 3, "--trials", 9)
    told = capsys.readouterr().out
    assert "best α for each ε" in told
    assert "CMA-ES" in told
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert len(summary["landscape"]["Adam"]["best_alpha_per_eps"]) == 3
    assert len(summary["cost"]["Adam"]["tpe"]["mean_gap"]) == 9
    pictures = {"heat-adam.svg", "heat-avagrad.svg", "suboptimality.svg", "trials.svg"}
    assert pictures <= {path.name for path in tmp_path.iterdir()}


def test_what_tuning_costs() -> None:
    gaps = np.array([[3.0, 0.8, 0.2, 0.0], [2.0, 2.0, 2.0, 2.0]])
    found = replay.cost(gaps)
    assert found["to_0.5_percent"]["mean"] == (3 + 5) / 2, "never: one more than all"
    assert found["to_1_percent"] == {"mean": 3.5, "quartiles": [2.75, 3.5, 4.25], "mean_curve": 4.0, "reached": 0.5}
