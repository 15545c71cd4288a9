"""One definition of sparsity and bits: what a plan logs, what a run prints, and what a report says of its file."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import paretorch as pt
from paretorch import zoo
from paretorch.cli.app import app


def trained(
    model: nn.Module, methods: list[Any], x: torch.Tensor
) -> tuple[dict[str, float], dict[str, int], nn.Module]:
    """The plan's own numbers once rounded, what they are over, and the finished network."""
    plan = pt.compress(model, *methods, steps=4, example=x)
    optimizer = torch.optim.SGD(plan.param_groups(), lr=0.05)
    for _ in range(4):
        model(x).square().mean().backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    plan.harden(optimizer)
    return plan.metrics(), plan.decided(), plan.finalize().eval()


class Norms(nn.Module):
    """Every layer can lose channels, but for the three of the input and the five of the output."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.deep = nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False)
        self.b, self.head = nn.Conv2d(16, 16, 1, bias=False), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.b(self.deep(self.norm(self.a(x)).relu()))
        found: torch.Tensor = self.head(x.relu().mean((2, 3)))
        return found


@pytest.mark.parametrize("build", [Norms, lambda: zoo.build("digits-cnn", width=8)])
def test_bits_with_channels_gone(build: Any, tmp_path: Path) -> None:
    """A weight that went with its channel counts 0 bits and is zero, as while it was being decided on."""
    torch.manual_seed(0)
    model = build()
    x = torch.randn(8, *((3, 6, 6) if build is Norms else (1, 8, 8)))
    weights = sum(one.numel() for one in model.parameters() if one.dim() > 1)
    methods = [pt.ContinuousSparsification(target=0.5, group="channel"), pt.SMOL(target_bits=4.0)]
    metrics, decided, small = trained(model, methods, x)
    found = pt.report(small, latency=False)
    assert found.weights < 0.75 * weights
    assert found.built == weights == decided["bits"]
    assert metrics["bits"] == pytest.approx(4.0, abs=0.1)  # up to a group
    assert found.bits == pytest.approx(metrics["bits"], abs=0.01)
    assert found.gone == weights - found.weights
    assert found.sparsity >= found.gone / weights
    pt.save(small, tmp_path / "x.pare")
    again = pt.report(pt.load(tmp_path / "x.pare", into=build()), latency=False)
    assert (again.bits, again.sparsity, again.built) == (found.bits, found.sparsity, found.built)
    assert f"of all {weights:,} weights are zero, or gone with their channels ({found.gone:,})" in str(found)
    page = found.to_html(tmp_path / "x.html").read_text()
    assert f"of all {weights:,} weights, {found.gone:,} of these gone with their channels" in page


def test_a_plan_after_another(tmp_path: Path) -> None:
    """Channels that two plans removed count as the network was built at first."""
    torch.manual_seed(0)
    model, x = Norms(), torch.randn(8, 3, 6, 6)
    weights = sum(one.numel() for one in model.parameters() if one.dim() > 1)
    for _ in range(2):
        trained(model, [pt.ContinuousSparsification(target=0.4, group="channel")], x)
    found = pt.report(model, latency=False)
    assert found.built == weights
    assert found.sparsity >= found.gone / weights > 0.4


def test_weights_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 10)), torch.randn(8, 20)
    metrics, decided, small = trained(model, [pt.ContinuousSparsification(target=0.8), pt.SMOL(target_bits=2.0)], x)
    found = pt.report(small)
    assert decided == {"sparsity": 900, "bits": 900}
    assert found.built == found.weights == 900
    assert found.sparsity == pytest.approx(metrics["sparsity"], abs=1e-6)
    assert found.bits == pytest.approx(metrics["bits"], abs=1e-6)


def test_what_a_run_prints_is_what_the_report_says(tmp_path: Path) -> None:
    """The recipe leaves the first and the last layer out: 80 % of the rest are zero, and fewer of all."""
    words = [
        "train",
        "--network",
        "digits-cnn",
        "--data",
        "digits",
        "--epochs",
        "1",
        "--batch",
        "512",
        "--sparsity",
        "0.8",
    ]
    words += ["--out", str(tmp_path / "run"), "--set", "network_options.width=4"]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    last = done.output.strip().splitlines()[-1]
    found = re.search(r"sparsity ([\d.]+) % of the ([\d,]+) weights decided on \(([\d.]+) % of all ([\d,]+)\)", last)
    assert found is not None, last
    report = pt.report(tmp_path / "run" / "model.pare")
    decided, of_all = int(found[2].replace(",", "")), int(found[4].replace(",", ""))
    assert float(found[1]) == pytest.approx(80, abs=0.1)
    assert float(found[3]) == pytest.approx(100 * report.sparsity, abs=0.005)
    assert of_all == report.weights > decided
    assert f"{found[3]}% of all {found[4]} weights are zero" in str(report)
    zeros = sum(layer.size.zeros for layer in report.layers)
    assert zeros == pytest.approx(float(found[1]) / 100 * decided, abs=1)


@pytest.mark.parametrize("count", ["weights", "macs"])
def test_what_a_run_of_channels_prints_is_what_the_report_says(count: str, tmp_path: Path) -> None:
    """Biases and norms go with their channels, and are no weights; multiply-adds are no weights either."""
    words = [
        "train",
        "--network",
        "digits-cnn",
        "--data",
        "digits",
        "--epochs",
        "1",
        "--batch",
        "512",
        "--sparsity",
        "0.5",
    ]
    words += ["--out", str(tmp_path / "run"), "--set", "network_options.width=8"]
    words += ["--set", "sparsity_options.group=channel", "--set", f"sparsity_options.count={count}"]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    last = done.output.strip().splitlines()[-1]
    report = pt.report(tmp_path / "run" / "model.pare")
    of_all = f"{100 * report.sparsity:.2f} %"
    if count == "macs":
        assert re.search(
            rf"sparsity [\d.]+ % of the multiply-adds \({of_all} of all {report.built:,} weights\)", last
        ), last
        return
    found = re.search(rf"of the ([\d,]+) weights decided on \({of_all} of all {report.built:,}\)", last)
    assert found is not None, last
    assert int(found[1].replace(",", "")) < report.built
