"""The demo, with fewer epochs of a smaller network."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paretorch.cli.app import app
from paretorch.deploy import Latency
from paretorch.errors import ConfigError
from paretorch.report import measure
from paretorch.workflows import demo


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"width": 6}
    monkeypatch.setattr(demo, "_DENSE", replace(demo._DENSE, epochs=2, network_options=options))
    monkeypatch.setattr(demo, "_SMALL", replace(demo._SMALL, epochs=2, finetune=1, network_options=options))
    monkeypatch.setattr(measure, "measure_latency", lambda *_, **__: [])


@pytest.mark.usefixtures("short")
def test_the_demo_meets_its_budget_and_compares(tmp_path: Path) -> None:
    out = tmp_path / "demo [b] [/i]"
    for _ in range(2):
        result = CliRunner().invoke(app, ["demo", "--out", str(out), "--budget", "4KB", "--device", "cpu"])
        assert result.exit_code == 0, result.output
    assert 0.9 * 4000 < (out / "model.pare").stat().st_size <= 4000
    assert "bytes on disk" in result.output
    assert f"{out}/model.pare" in result.output, "a name is no markup"
    assert f"{(out / 'model.pare').stat().st_size:,}" in result.output
    assert "compressed" in (out / "report.html").read_text()


@pytest.mark.usefixtures("short")
def test_the_demo_overwrites_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(ConfigError, match="no demo"):
        demo.run_demo(tmp_path)
    assert (tmp_path / "letters.txt").read_text() == "dear"


@pytest.mark.parametrize(("low", "said"), [(0.9, "0.90 to 1.20 ms, no difference"), (0.4, "0.60 ms")])
@pytest.mark.usefixtures("short")
def test_the_demo_claims_no_difference_within_noise(
    low: float, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both networks are timed in one call; if their ranges overlap, neither is shown as the faster one."""
    called: list[list[str]] = []

    def timed(networks: dict[str, object], *_: object) -> list[Latency]:
        called.append(list(networks))
        small, dense = networks
        high = 1.2 if low > 0.5 else 0.7
        middle = (low + high) / 2 if low > 0.5 else 0.6
        return [
            Latency(dense, "eager", 1.0, 0.8, 1.1, 5, 64, 1, True),
            Latency(small, "eager", middle, low, high, 5, 64, 1, True),
        ]

    monkeypatch.setattr(measure, "measure_latency", timed)
    rows = demo.run_demo(tmp_path / "demo", budget=4000, device="cpu")
    assert called == [["model.pare", "dense"]]
    assert rows[1]["latency"] == said
    assert rows[0]["latency"] == ("0.80 to 1.10 ms" if low > 0.5 else "1.00 ms")
    assert said in (tmp_path / "demo" / "report.html").read_text()
