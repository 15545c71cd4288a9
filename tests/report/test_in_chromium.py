"""Pages as Chromium shows them: nothing on the console, nothing asked of a network, nothing wider than a phone."""

import re
import shutil
import subprocess
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
import torch
from torch import nn

from paretorch.deploy import Latency
from paretorch.deploy.measure.structure import Activation, Shared
from paretorch.report import report, write_html
from paretorch.report.markup import png
from paretorch.report.pareto import Point, draw

pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
_PHONE = 360  # CSS pixels: a small one


def _shown(path: Path) -> tuple[str, str]:
    """The document as Chromium has it once loaded, and what was said on its console."""
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    command += [f"--user-data-dir={path.parent / 'profile'}", "--virtual-time-budget=2000", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every section that a report can have, with long names."""
    model = nn.Sequential()
    for i in range(4):
        model.add_module(f"a_module_with_quite_a_long_name_{i}", nn.Linear(6, 6))
    with torch.no_grad():
        model[0].weight.copy_(torch.randint(-2, 2, (6, 6)))
    found = report(model, example=torch.zeros(1, 6), accuracy=0.9123, latency=False)
    layers = tuple(layer.name for layer in found.layers)
    full = replace(
        found,
        latency=(
            Latency(found.name, "onnxruntime", 1.25, 1.0, 2.0, 5, 64, 1, True),
            Latency("dense", "onnxruntime", 2.5, 2.0, 3.0, 5, 64, 1, True),
        ),
        activations=(Activation("a_module_with_quite_a_long_name.relu", 3.5, {3: 1, 4: 1}, 0.0, 4.2),),
        shared=(Shared(layers, ("s_0", "s_1"), ((0,), (1,), (0,), (1,))), Shared(layers, ("t_0",), ((0,),) * 4)),
    )
    history = [{"epoch": i, "phase": "train", "loss": 2.0 / i, "accuracy": 0.1 * i} for i in range(1, 9)]
    rows = [{"network": "dense", "accuracy": 0.92, "bytes": 10**6, "sparsity": 0.0, "bits": 32.0, "latency_ms": 2.5}]
    path = tmp_path_factory.mktemp("page") / "report.html"
    samples = png(torch.randint(256, (3, 270, 270), dtype=torch.uint8))
    return write_html(path, title="a network", comparison=rows, report=full, history=history, samples=samples)


def test_everything_is_shown_without_warnings(page: Path) -> None:
    shown, console = _shown(page)
    assert console == ""
    for word in ("Activations", "Shared layers", "layers 1-2 run twice", "2.00 ×", "91.23%", "without buffers"):
        assert word in shown
    assert shown.count("<svg") >= 9


def test_the_check_finds_a_page_with_a_request(page: Path, tmp_path: Path) -> None:
    """The page forbids itself every request, so that one would be refused, and be told on the console."""
    for number, bait in enumerate(('<img src="https://example.invalid/x.png">', "<script>alert(1)</script>")):
        baited = tmp_path / f"baited{number}.html"
        baited.write_text(page.read_text(encoding="utf-8").replace("</main>", f"{bait}</main>"), encoding="utf-8")
        assert "Content Security Policy" in _shown(baited)[1]


@pytest.mark.parametrize("kind", ["report", "picture"])
def test_nothing_is_wider_than_a_phone(page: Path, tmp_path: Path, kind: str) -> None:
    content = page.read_text(encoding="utf-8")
    if kind == "picture":
        points = [Point("a" * 40, "others, of a long name", 48_000, 0.91), Point("b", "ours", 16_000, 0.88)]
        content = f"<!doctype html><title>x</title><body style='margin:0'>{draw('t', points)}"
    frame = f'<iframe width="{_PHONE}" height="700" style="border:0" srcdoc="{escape(content)}"></iframe>'
    script = (
        "<script>onload = () => { const d = document.querySelector('iframe').contentDocument;"
        "document.title = d.documentElement.scrollWidth + ' of ' + d.documentElement.clientWidth; }</script>"
    )
    around = tmp_path / "phone.html"
    around.write_text(f"<!doctype html><title>not loaded</title>{frame}{script}", encoding="utf-8")
    shown, _ = _shown(around)
    (found,) = re.findall(r"<title>(\d+) of (\d+)</title>", shown)
    assert 300 < int(found[1]) <= _PHONE
    assert int(found[0]) <= int(found[1])


def test_tables_fit_a_desk(page: Path, tmp_path: Path) -> None:
    """At 1280 px no table of a report needs a scroll bar, with long names and every column."""
    content = page.read_text(encoding="utf-8")
    frame = f'<iframe width="1280" height="700" style="border:0" srcdoc="{escape(content)}"></iframe>'
    script = (
        "<script>onload = () => { const d = document.querySelector('iframe').contentDocument;"
        "document.title = [...d.querySelectorAll('.scroll')].map(e => e.scrollWidth - e.clientWidth).join(' '); }</script>"
    )
    around = tmp_path / "desk.html"
    around.write_text(f"<!doctype html><title>not loaded</title>{frame}{script}", encoding="utf-8")
    shown, _ = _shown(around)
    (found,) = re.findall(r"<title>([-\d ]+)</title>", shown)
    assert len(found.split()) >= 4
    assert all(int(over) <= 0 for over in found.split()), found


def test_tables_on_paper_have_no_scroll_bars(page: Path) -> None:
    """Printed, what is too wide is wrapped: nothing is cut off or hidden."""
    (rules,) = re.findall(r"@media print \{(.*?\} \})", page.read_text(encoding="utf-8"), re.DOTALL)
    assert ".scroll { overflow: visible" in rules
    assert "white-space: normal" in rules
    paper = page.with_suffix(".pdf")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={page.parent / 'print'}"]
    subprocess.run([*command, f"--print-to-pdf={paper}", page.as_uri()], check=True, capture_output=True, timeout=120)
    assert paper.stat().st_size > 10_000
