"""The Pareto picture: the front by its definition, sizes on a logarithmic axis, readable by eye, ear and machine."""

import itertools
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paretorch.report.pareto import Point, as_rows, as_text, draw, on_front

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert('x')</script>&\"'"
POINTS = [
    Point("a", "ours", 16_000, 0.885),
    Point("b", "ours", 48_000, 0.915),
    Point("c", "dense", 1_100_000, 0.929),
    Point("d", "others", 70_000, 0.90),
    Point("e", "others", 20_000, 0.10),
]

_points = st.lists(
    st.builds(
        Point,
        name=st.just("x"),
        family=st.sampled_from(["a", "b", "c"]),
        bytes=st.integers(1, 10**9),
        accuracy=st.floats(0, 1),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(_points)
def test_the_front_is_what_nothing_beats(points: list[Point]) -> None:
    front = [point for point, best in zip(points, on_front(points), strict=True) if best]
    assert front
    for one, other in itertools.permutations(front, 2):
        same = (one.bytes, one.accuracy) == (other.bytes, other.accuracy)
        assert same or one.bytes < other.bytes or one.accuracy > other.accuracy
    for point in points:
        assert any(best.bytes <= point.bytes and best.accuracy >= point.accuracy for best in front)


@settings(max_examples=40, deadline=None)
@given(_points)
@example([Point("x", "a", 1, 1.0), Point("x", "a", 1, 0.9999999999999999)])
@example([Point("x", "a", 1, 0.0), Point("x", "a", 1, 5e-324)])
def test_any_points_can_be_drawn(points: list[Point]) -> None:
    root = ET.fromstring(draw("t", points))
    width, height = (float(value) for value in root.attrib["viewBox"].split()[2:])
    for one in root.iter(f"{SVG}path"):
        if "transform" in one.attrib:
            x, y = (float(v) for v in one.attrib["transform"].split("translate(")[1].split(")")[0].split())
            assert 0 <= x <= width
            assert 0 <= y <= height
    assert "nan" not in draw("t", points)
    below = [one for one in root.iter(f"{SVG}text") if one.attrib["y"] == "326"]
    assert below, "the axis says which sizes these are"


@pytest.mark.parametrize("accuracy", [0.0, 1.0])
def test_the_axis_ends_where_accuracies_do(accuracy: float) -> None:
    root = ET.fromstring(draw("t", [Point("a", "x", 1000, accuracy), Point("b", "x", 2000, accuracy)]))
    shown = [float(one.text[:-1]) for one in root.iter(f"{SVG}text") if re.fullmatch(r"-?[\d.]+%", one.text or "")]
    assert len(shown) >= 3
    assert 0 <= min(shown) < max(shown) <= 100


def test_the_picture_says_what_it_shows() -> None:
    root = ET.fromstring(draw(HOSTILE, [*POINTS, Point(HOSTILE, HOSTILE, 30_000, 0.9)]))
    assert root.attrib["role"] == "img"
    assert root[0].tag == f"{SVG}title"
    assert root[0].text == HOSTILE
    assert root[1].tag == f"{SVG}desc"
    assert "b, 48,000 bytes, 91.50%" in str(root[1].text)
    assert "d, 70,000" not in str(root[1].text), "not on the front"
    tips = [one.text for one in root.iter(f"{SVG}title")]
    assert "e, others: 20,000 bytes, 10.00% (below the picture)" in tips
    said = "marks on the lower edge: below"
    assert said in draw("all", POINTS)
    assert said not in draw("without e", POINTS[:-1])
    words = [one.text for one in root.iter(f"{SVG}text")]
    assert {"ours", "dense", "others", HOSTILE} <= set(words)
    assert {"20 kB", "50 kB", "100 kB", "1 MB"} <= set(words)
    assert not [one for one in root.iter() if one.tag.endswith(("script", "image", "a"))]


@pytest.mark.parametrize("name", ["a\x1b[31m\x00", "half \ud800"])
def test_any_name_can_be_drawn_and_printed(name: str) -> None:
    points = [Point(name, "ours", 16_000, 0.885)]
    ET.fromstring(draw(name, points).encode())
    assert as_text(points).replace("\n", "").isprintable()


def test_bytes_go_by_their_logarithm() -> None:
    root = ET.fromstring(draw("t", [Point(str(n), "f", 10**n, 0.5 + n / 100) for n in (3, 4, 5)]))
    marks = [one for one in root.iter(f"{SVG}path") if "bytes" in str(one.findtext(f"{SVG}title"))]
    xs = [float(one.attrib["transform"].split("(")[1].split()[0]) for one in marks]
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)


def test_rows_and_text_are_in_order_of_size() -> None:
    rows = as_rows(POINTS)
    assert [row["name"] for row in rows] == ["a", "e", "b", "d", "c"]
    assert [row["front"] for row in rows] == [True, False, True, False, True]
    lines = as_text(POINTS).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["a", "e", "b", "d", "c"]
    assert lines[2].endswith("*")
    assert "48,000    91.50%      *" in lines[4]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_chromium_shows_the_picture(tmp_path: Path) -> None:
    (tmp_path / "bench.svg").write_text(draw(HOSTILE, POINTS), encoding="utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", (tmp_path / "bench.svg").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "dense: 1,100,000 bytes, 92.90%" in done.stdout
    assert "CONSOLE" not in done.stderr
