"""The demo, with fewer epochs of a smaller network."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paretorch.cli.app import app
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
