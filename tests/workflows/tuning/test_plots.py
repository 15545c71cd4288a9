"""Pictures: well-formed, with a cell for each setting and a line for each series."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from paretorch.report.charts import Curve, curves
from paretorch.report.markup import WIDTH, save
from paretorch.workflows.tuning.plots import STEPS, heat_map


def shapes(file, kind: str) -> list[str]:
    return [each.get("class", "") for each in ElementTree.parse(file).iter(f"{{http://www.w3.org/2000/svg}}{kind}")]


def test_heat_map(tmp_path) -> None:
    errors = np.array([[9.0, 8.0, np.nan], [5.0, 5.4, 40.0]])
    tried = np.array([[True, True, True], [True, True, False]])
    save(heat_map("a <b>", [0.1, 1.0], [1e-8, 1e-3, 10.0], errors, tried), tmp_path / "h.svg")
    cells = shapes(tmp_path / "h.svg", "rect")[1:]  # the first is the ground
    # from the upper row down in the table, then the dots, then the legend
    assert cells[:6] == ["h3", "h3", "diverged", "h0", "h0", "unknown"]
    assert cells.count("best") == 2 + 1, "an ε whose settings all diverged has no best α; one is in the legend"
    text = (tmp_path / "h.svg").read_text()
    assert "α = 1, ε = 0.001: 5.4 %" in text
    assert "1 diverged" in text


def test_heat_map_of_nothing() -> None:
    assert "0 settings known" in heat_map("none", [1.0], [1.0], [[np.nan]], [[False]])


def test_curves(tmp_path) -> None:
    x = np.array([1, 10, 100])
    series = {f"series number {i}": Curve(x, x * 0.1 + i, x * 0.0, x * 0.2 + i) for i in range(7)}
    for log in (False, True):
        save(curves("c", series, x_label="steps", log_x=log), tmp_path / "c.svg")
        lines = shapes(tmp_path / "c.svg", "path")
        assert [kind for kind in lines if kind.startswith("band")] == [f"band b{i % 6}" for i in range(7)]
        assert sum(kind.startswith("line") for kind in lines) == 7
        assert ("1000" in (tmp_path / "c.svg").read_text()) is False
    assert "ends at 16" in curves("c", series, x_label="steps")


def test_one_point_and_no_height() -> None:
    picture = curves("c", {"a": Curve([1], [0.0], [0.0], [0.0])}, x_label="x")
    assert "ends at 0" in picture
    root = ElementTree.fromstring(picture)
    assert [each.get("class") for each in root.findall("rect")] == ["c0"], "a line of one point is not seen: a dot"
    heights = [float(each.get("y1", "")) for each in root.findall("line") if each.get("class") == "grid"]
    assert max(heights) <= 228, "nothing is drawn below the axis"
    words = [each.text for each in root.findall("text") if each.get("text-anchor") == "middle"]
    assert words == ["1", "x"], "one value is one mark"


def test_a_long_legend_stands_above_the_lines() -> None:
    values = [1.0, 0.5]
    series = {f"a method-{i}": Curve([1, 2], values, values, values) for i in range(30)}
    root = ElementTree.fromstring(curves("c", series, x_label="epoch", y_label="test accuracy"))
    words = {each.text: float(each.get("y", "")) for each in root.findall("text")}
    assert words["a method-29"] + 12 <= words["test accuracy"], "the label of the axis is below the last name"
    grid = [float(each.get("y1", "")) for each in root.findall("line") if each.get("class") == "grid"]
    assert min(grid) > words["test accuracy"]
    assert float(root.get("viewBox", "").split()[3]) >= words["epoch"], "the picture is as much taller"


def test_with_a_floor_tenths_are_equally_far_apart() -> None:
    falling = np.array([100.0, 10.0, 1.0, 0.1, 0.01, 0.0])
    picture = curves("c", {"a": Curve(np.arange(6), falling, falling, falling)}, x_label="x", floor=0.1)
    line = ElementTree.fromstring(picture).findall("path")[-1]
    ups = [float(point.split()[1]) for point in line.get("d", "")[1:].replace(",", " ").split("L")]
    assert np.diff(ups[:4]) == pytest.approx([ups[1] - ups[0]] * 3, abs=0.11)
    assert ups[3] == ups[4] == ups[5], "what is below the floor lies on it"


@pytest.mark.parametrize(
    "steps", [STEPS, [0.0069, 0.014, 0.028, 0.069, 0.14, 0.28], [610, 1200, 2400, 6100, 12000, 24000]]
)
@pytest.mark.parametrize("columns", [1, 2, 8, 13, 21])
def test_the_words_of_a_heat_map_fit(steps, columns) -> None:
    epsilons = [1e-8 * 10**j for j in range(columns)]
    picture = ElementTree.fromstring(heat_map("h", [0.1, 1.0], epsilons, np.ones((2, columns)), None, steps, ""))
    rows: dict[str, list[tuple[float, float]]] = {}
    for each in picture.findall("text"):
        length = 6 * len(each.text or "")
        start = (
            float(each.get("x", "")) - {"start": 0, "middle": length / 2, "end": length}[each.get("text-anchor", "")]
        )
        rows.setdefault(each.get("y", ""), []).append((start, start + length))
    for spans in rows.values():
        spans.sort()
        assert all(end < start for (_, end), (start, _) in itertools.pairwise(spans))
        assert spans[-1][1] < WIDTH
    height = float(picture.get("viewBox", "").split()[-1])
    assert max(map(float, rows)) < height
    assert [each.text for each in picture.findall("text")[-3:]] == ["diverged", "not tried", "the best α of an ε"]
