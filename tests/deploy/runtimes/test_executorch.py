"""Programs of ExecuTorch, run by its runtime: weights as trained, inputs rounded to 8 bits."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import paretorch as pt
from paretorch.errors import ConfigError, LeftOutWarning, MissingExtraError
from tests.deploy.runtimes.nets import Pictures, Words, batch_for

RUNTIME = "executorch"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paretorch.deploy.runtimes.registry.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=re.escape("needs executorch: pip install 'paretorch[executorch]'")):
        pt.compress(Words(), pt.SMOL(), steps=1, runtime=RUNTIME)


def test_programs_are_traced(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape("reads .pte files, which are traced: give example=")):
        pt.export(Words(), tmp_path / "words.pte", runtime=RUNTIME)


@pytest.mark.parametrize("tied", [False, True])
def test_a_report_counts_a_tied_weight_for_both_layers(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paretorch.deploy.runtimes.registry.find_spec", lambda name: name)
    whole = pt.compress(Words(tied), pt.SMOL(), steps=1, runtime=RUNTIME).finalize()
    weights = 2 * 40 * 256 + 2 * 256 * 512
    assert pt.report(whole, latency=False).runtimes[RUNTIME] == weights // 2 + 2 * weights // 32 + 4 * 512


def run(path: Path, *inputs: Tensor) -> Tensor:
    engine = pytest.importorskip("executorch.runtime")
    program = engine.Runtime.get().load_program(path, verification=engine.Verification.Minimal)
    found: Tensor = program.load_method("forward").execute([one.contiguous() for one in inputs])[0]
    return found


def small(model: nn.Module) -> nn.Module:
    pytest.importorskip("executorch.runtime")
    torch.manual_seed(0)
    return pt.compress(model, pt.SMOL(), steps=1, runtime=RUNTIME).finalize().eval()


def test_weights_are_the_trained_values(tmp_path: Path) -> None:
    """A row of the identity is exact in 8 bits, so that a product with it is a row of the weight."""
    whole = small(nn.Sequential(nn.Linear(256, 48, bias=False)))
    path = pt.export(whole, tmp_path / "linear.pte", runtime=RUNTIME, example=torch.eye(256))
    weight = whole[0].weight.detach()  # type: ignore[index]
    found = run(path, torch.eye(256))
    assert float((found - weight.T).abs().max()) < 1e-6 * float(weight.abs().max())
    assert path.stat().st_size < 256 * 48 // 2 + 2 * 8 * 48 + 6000


@pytest.mark.parametrize("tied", [False, True])
def test_words_of_any_length(tied: bool, tmp_path: Path) -> None:
    whole = small(Words(tied))
    x = batch_for(whole)
    path = pt.export(whole, tmp_path / "words.pte", runtime=RUNTIME, example=x)
    for part in (x, x[:1], x[:2, :3]):
        wanted = whole(part).detach()
        assert float((run(path, part) - wanted).abs().max()) < 0.05 * float(wanted.abs().max())
    assert path.stat().st_size < 0.7 * sum(p.numel() for p in whole.parameters())


def test_pictures(tmp_path: Path) -> None:
    """Depthwise convolutions have no integers in XNNPACK: they stay in fp32, named and counted."""
    pytest.importorskip("executorch.runtime")
    with pytest.warns(LeftOutWarning, match="has no codes for 1 of 4 layers, which stay in fp32 .* depth.weight"):
        whole = small(Pictures())
    x = batch_for(whole)
    path = pt.export(whole, tmp_path / "pictures.pte", runtime=RUNTIME, example=x)
    wanted = whole(x).detach()
    assert float((run(path, x) - wanted).abs().max()) < 0.05 * float(wanted.abs().max())


class Halved(nn.Module):
    """What no program computes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x) if float(x.sum()) > 0 else self.layer(-x)


def test_what_cannot_be_traced_is_refused(tmp_path: Path) -> None:
    whole = small(Halved())
    with pytest.raises(ConfigError, match="Halved cannot be exported to ExecuTorch: "):
        pt.export(whole, tmp_path / "halved.pte", runtime=RUNTIME, example=torch.ones(2, 32))
    assert list(tmp_path.iterdir()) == []
