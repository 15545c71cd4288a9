"""report.html: well-formed, self-contained, escaped, accessible; charts that say what they show."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import xml.etree.ElementTree as ET
import zlib
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from torch import nn

from paretorch.deploy.measure.latency import Latency
from paretorch.report import Report, report, write_html
from paretorch.report.charts import bar_rows, histogram, line_chart, stacked_bar
from paretorch.report.markup import png, shorten, show, table, ticks
from paretorch.report.page import history_charts

HOSTILE = "<script>alert('x')</script>&\"'"
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Outline(HTMLParser):
    """Checks that tags nest, and collects what the tests ask about."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def outline(page: str) -> Outline:
    parsed = Outline()
    parsed.feed(page)
    assert parsed.open == []
    return parsed


HISTORY = [
    {"epoch": 1, "phase": "search", "loss": 2.0, "test_loss": 2.1, "accuracy": 0.2, "sparsity": 0.0, "lr": 0.1},
    {
        "epoch": 2,
        "phase": "search",
        "loss": 1.0,
        "test_loss": float("nan"),
        "accuracy": 0.5,
        "sparsity": 0.5,
        "lr": 0.1,
    },
    {"epoch": 3, "phase": "finetune", "loss": 0.5, "test_loss": 0.9, "accuracy": 0.8, "sparsity": 0.5, "note": HOSTILE},
]


@pytest.fixture
def page(tmp_path: Path) -> str:
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    model.add_module(HOSTILE.replace(".", ""), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.randint(-2, 2, (5, 6)))
    found = report(model, accuracy=0.9)
    path = write_html(
        tmp_path / "report.html",
        title=HOSTILE,
        comparison=[{"network": "dense", "accuracy": 0.917, "bytes": 1_090_000}, {"network": HOSTILE, HOSTILE: None}],
        report=found,
        history=HISTORY,
    )
    return path.read_text(encoding="utf-8")


def test_the_page_nests_and_escapes(page: str) -> None:
    parsed = outline(page)
    assert "<script" not in page
    assert not [tag for tag, _ in parsed.tags if tag in {"script", "iframe", "img", "object", "form"}]
    assert not [name for _, attrs in parsed.tags for name in attrs if name.startswith("on")]


def test_the_page_asks_nobody(page: str) -> None:
    assert not re.findall(r"(?:https?:)?//\w", page)
    assert "@import" not in page
    assert "url(" not in page
    assert "default-src 'none'" in page


def test_the_page_can_be_read_aloud(page: str) -> None:
    parsed = outline(page)
    tags = [tag for tag, _ in parsed.tags]
    assert dict(parsed.tags)["html"]["lang"] == "en"
    assert tags.count("h1") == 1
    assert tags.count("caption") == tags.count("table") >= 2
    ids = [attrs["id"] for _, attrs in parsed.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    charts = [attrs for tag, attrs in parsed.tags if tag == "svg"]
    assert charts
    for attrs in charts:
        assert attrs["role"] == "img"
        assert all(ident in ids for ident in str(attrs["aria-labelledby"]).split())


def contrast(first: str, second: str) -> float:
    """WCAG 2's contrast ratio of two colours."""

    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_colours_have_contrast_in_both_modes(page: str) -> None:
    modes = re.findall(r":root \{(.*?)\}", page, re.DOTALL)
    assert len(modes) == 2
    for mode in modes:
        colour = dict(re.findall(r"--(\w+): (#\w{6})", mode))
        for back in ("bg", "card"):
            assert contrast(colour["ink"], colour[back]) >= 7
            assert contrast(colour["soft"], colour[back]) >= 4.5
            assert all(contrast(colour[name], colour[back]) >= 3 for name in "abcd")


def test_words_of_phases_that_begin_close_together_do_not_meet() -> None:
    phases = [*["search"] * 24, "harden", *["finetune"] * 8]
    epochs = [*range(1, 25), 24, *range(25, 33)]
    rows = [{"epoch": epoch, "phase": phase, "loss": 1 / epoch} for epoch, phase in zip(epochs, phases, strict=True)]
    root = ET.fromstring(dict(history_charts(rows))["loss"])
    places = {one.text: one.attrib for one in root.iter("text")}
    assert abs(float(places["harden"]["y"]) - float(places["finetune"]["y"])) >= 12


def test_history_becomes_charts_of_what_changes() -> None:
    charts = dict(history_charts(HISTORY))
    assert list(charts) == ["loss", "accuracy", "sparsity"]  # the learning rate never changes, the note is no number
    assert "test loss" in charts["loss"]
    assert "finetune" in charts["loss"]
    assert "nan" not in charts["loss"]
    assert history_charts([]) == history_charts(HISTORY[:1]) == []


def test_charts_are_xml_and_say_their_numbers() -> None:
    charts = [
        line_chart("a", HOSTILE, {HOSTILE: [(0, 1), (1, 1)]}, x_label="epoch", marks=[(0, HOSTILE)]),
        bar_rows("b", "bars", [(HOSTILE, 0.0), ("two", 2.0)]),
        bar_rows("c", "none", []),
        histogram("d", "bits", {"1": 3, HOSTILE: 0}, x_label="bits"),
        stacked_bar("e", "kinds", [("codes", 0.0), (HOSTILE, 0.0)]),
    ]
    for chart in charts:
        root = ET.fromstring(chart)
        assert root.find("title") is not None
        assert root.find("desc") is not None
        assert all(float(bar.get("width", 0)) >= 0 for bar in root.iter("rect"))
    assert "two 2" in (ET.fromstring(charts[1]).findtext("desc") or "")


def _page_of(found: Report, tmp_path: Path) -> str:
    return write_html(tmp_path / "x.html", title="x", comparison=[], report=found, history=[]).read_text()


@pytest.mark.parametrize(("channels", "colour"), [(1, 0), (3, 2)])
def test_pixels_go_into_a_png_and_the_png_into_the_page(tmp_path: Path, channels: int, colour: int) -> None:
    pixels = torch.arange(channels * 5 * 7, dtype=torch.uint8).view(channels, 5, 7)
    picture, at, chunks = png(pixels), 8, {}
    while at < len(picture):
        (length,) = struct.unpack_from(">I", picture, at)
        kind, data = picture[at + 4 : at + 8], picture[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", picture, at + 8 + length) == (zlib.crc32(kind + data),)
        chunks[kind], at = data, at + 12 + length
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    assert struct.unpack(">IIBBBBB", chunks[b"IHDR"]) == (7, 5, 8, colour, 0, 0, 0)
    rows = pixels.permute(1, 2, 0).reshape(5, -1).tolist()
    assert zlib.decompress(chunks[b"IDAT"]) == b"".join(bytes([0, *row]) for row in rows)
    found = report(nn.Linear(2, 2))
    path = write_html(tmp_path / "x.html", title="x", comparison=[], report=found, history=[], samples=picture)
    (image,) = [attrs for tag, attrs in outline(path.read_text()).tags if tag == "img"]
    assert "Images made by the network" in str(image["alt"])
    kind, _, data = str(image["src"]).partition(",")
    assert kind == "data:image/png;base64"
    assert b64decode(data) == picture


def test_macs_never_stand_alone(tmp_path: Path) -> None:
    found = report(nn.Sequential(nn.Linear(6, 5)), example=torch.zeros(1, 6), latency=False)
    page = _page_of(found, tmp_path)
    outline(page)
    assert "<dt>latency</dt><dd>not measured" in page
    assert "pare report RUN --latency" in page
    timed = replace(found, latency=(Latency("net", "torch", 1.25, 1.0, 2.0, 5, 64, 1, True),))
    page = _page_of(timed, tmp_path)
    assert "<dt>latency</dt><dd>1.25 ms<small>batch 64, torch" in page
    assert "not measured" not in page.lower()
    assert "atency" not in _page_of(report(nn.Linear(6, 5)), tmp_path), "no MACs, nothing to say"


def test_times_that_were_not_taken_alone_are_told(tmp_path: Path) -> None:
    found = report(nn.Sequential(nn.Linear(6, 5)), example=torch.zeros(1, 6), latency=False)
    alone = Latency("net", "onnxruntime", 1.25, 1.0, 2.0, 5, 64, 1, True)
    page = _page_of(replace(found, latency=(alone,)), tmp_path)
    assert "CPU, in a process of its own;" in page
    assert "alone" not in page
    page = _page_of(replace(found, latency=(alone, replace(alone, runtime="torch", isolated=False))), tmp_path)
    assert "in a process of its own where one could be exported" in page
    assert page.index("<td>yes</td>") < page.index("<td>no</td>")


def test_a_network_that_is_larger_in_a_file(tmp_path: Path) -> None:
    page = _page_of(report(nn.Linear(2, 2)), tmp_path)
    assert "<dt>larger</dt><dd>by " in page
    assert "<dt>smaller</dt>" not in page


def test_the_learned_sparsity_is_drawn_layer_by_layer(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(10, 4), nn.Linear(4, 2))
    with torch.no_grad():
        model[0].weight[:3] = 0.0
    page = _page_of(report(model), tmp_path)
    assert "0: 75.0%" in page
    assert "1: 0.0%" in page
    assert "Sparsity by layer" in page


def test_bars_are_in_proportion() -> None:
    root = ET.fromstring(bar_rows("b", "bars", [("one", 1.0), ("four", 4.0)]))
    widths = [float(bar.get("width", 0)) for bar in root.iter("rect") if bar.get("class") == "c0"]
    assert widths[1] == pytest.approx(4 * widths[0], rel=0.01)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.1, 0.13), (-5, 12345), (3, 3), (0, 0), (1e-9, 2e-9)])
def test_ticks_are_round_and_cover(low: float, high: float) -> None:
    found = ticks(low, high)
    assert found[0] <= low
    assert found[-1] >= high
    assert 2 <= len(found) <= 8


def test_cells_are_written_for_people() -> None:
    assert show("test_accuracy", 0.9123) == "91.23%"
    assert show("bytes", 48_123) == "48.1 kB"
    assert show("macs", 40_800_000) == "40.8 M"
    assert show("x", None) == "–"
    assert show("epochs", 12_000) == "12,000"
    assert shorten("stages.0.0.conv1", 40) == "stages.0.0.conv1"
    assert len(shorten("a" * 50, 20)) == 20
    assert '<th scope="row">dense</th>' in table("t", [{"network": "dense", "bits": 2.0}])


def test_a_lone_surrogate_does_not_stop_the_page(tmp_path: Path) -> None:
    path = write_html(tmp_path / "x.html", title="\ud800", comparison=[], report=report(nn.Linear(2, 2)), history=[])
    assert "<h1>?</h1>" in path.read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_chromium_shows_the_page_without_complaint(page: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", (tmp_path / "page.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "<svg" in done.stdout
    assert done.stdout.count("<h1>") == 1
    assert "CONSOLE" not in done.stderr
