"""The charts of a report: lines over epochs, bars per layer, a histogram, one bar in parts. Plain SVG strings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from paretorch.report.svg import WIDTH, figure, line, path, rect, shorten, text, ticks

Format = Callable[[float], str]
_ROW = 20.0


def plain(value: float) -> str:
    return f"{value:.4g}"


def line_chart(
    ident: str,
    title: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x_label: str,
    marks: Sequence[tuple[float, str]] = (),
    form: Format = plain,
) -> str:
    """One line per series, told apart by colour and dash; `marks` are vertical lines with a word."""
    height, left, right, top, bottom = 230.0, 52.0, WIDTH - 10.0, 24.0, 190.0
    points = [point for values in series.values() for point in values]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    y_ticks = ticks(min(ys), max(ys))
    low, high = min(min(ys), y_ticks[0]), max(max(ys), y_ticks[-1])
    start, span = min(xs), (max(xs) - min(xs)) or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        return left + (x - start) / span * (right - left), bottom - (y - low) / (high - low) * (bottom - top)

    body = []
    for tick in y_ticks:
        y = at(start, tick)[1]
        body += [line(left, y, right, y, "grid"), text(left - 6, y + 4, form(tick), "end")]
    for tick in [tick for tick in ticks(min(xs), max(xs), 5) if start <= tick <= start + span]:
        body.append(text(at(tick, low)[0], bottom + 16, plain(tick), "middle"))
    body += [line(left, bottom, right, bottom, "axis"), text((left + right) / 2, bottom + 33, x_label, "middle")]
    for i, (where, word) in enumerate(marks):
        # Rounding and fine-tuning begin an epoch apart, where their words would meet.
        x, y = at(where, low)[0], top + 10 + 13 * (i % 4)
        body += [
            line(x, top, x, bottom, "mark"),
            text(x + (4 if x < WIDTH / 2 else -4), y, word, "start" if x < WIDTH / 2 else "end"),
        ]
    where = left
    for i, (name, values) in enumerate(series.items()):
        body.append(path([at(x, y) for x, y in values], f"line s{i % 4}", name))
        body += [line(where, 10, where + 18, 10, f"line s{i % 4}"), text(where + 23, 14, name)]
        where += 40 + 6.6 * len(name)
    ends = ", ".join(f"{name} from {form(values[0][1])} to {form(values[-1][1])}" for name, values in series.items())
    return figure(ident, title, f"Against {x_label}: {ends}.", height, body)


def bar_rows(
    ident: str,
    title: str,
    rows: Sequence[tuple[str, float]],
    *,
    full: float | None = None,
    form: Format = plain,
    kind: str = "c0",
) -> str:
    """A horizontal bar for each name; `full` is the value of a bar across the whole width (default: the largest)."""
    left, right = 150.0, WIDTH - 58.0
    full = full or max((value for _, value in rows), default=1.0) or 1.0
    body = []
    for i, (name, value) in enumerate(rows):
        y = i * _ROW
        body += [
            text(left - 8, y + 14, shorten(name, 21), "end"),
            rect(left, y + 4, right - left, _ROW - 8, "track"),
            rect(left, y + 4, (right - left) * min(value / full, 1.0), _ROW - 8, kind, f"{name}: {form(value)}"),
            text(right + 6, y + 14, form(value)),
        ]
    said = "; ".join(f"{name} {form(value)}" for name, value in rows)
    return figure(ident, title, said, max(len(rows), 1) * _ROW + 2, body)


def histogram(ident: str, title: str, counts: Mapping[str, int], *, x_label: str) -> str:
    """A column for each label, with its share on top."""
    height, top, bottom = 200.0, 24.0, 158.0
    total, most = sum(counts.values()) or 1, max(counts.values(), default=1) or 1
    width = (WIDTH - 20.0) / max(len(counts), 1)
    body = [line(10, bottom, WIDTH - 10, bottom, "axis"), text(WIDTH / 2, bottom + 34, x_label, "middle")]
    for i, (label, count) in enumerate(counts.items()):
        x, tall = 10 + i * width, (bottom - top) * count / most
        share = f"{count / total:.1%}" if width > 44 else f"{count / total:.0%}"
        body += [
            rect(
                x + width * 0.12, bottom - tall, width * 0.76, tall, "c0", f"{label}: {count:,} ({count / total:.2%})"
            ),
            text(x + width / 2, bottom - tall - 6, share, "middle"),
            text(x + width / 2, bottom + 16, label, "middle"),
        ]
    said = "; ".join(f"{label}: {count / total:.1%}" for label, count in counts.items())
    return figure(ident, title, f"Share by {x_label}: {said}.", height, body)


def stacked_bar(ident: str, title: str, parts: Sequence[tuple[str, float]], *, form: Format = plain) -> str:
    """One bar cut into its parts, with a legend that says each part's amount and share."""
    total = sum(value for _, value in parts) or 1.0
    body, x = [], 0.0
    for i, (name, value) in enumerate(parts):
        wide = WIDTH * value / total
        body.append(rect(x, 2, max(wide - 1.0, 0.0), 30, f"c{i % 4}", f"{name}: {form(value)}", 3))
        x += wide
    for i, (name, value) in enumerate(parts):
        y = 44.0 + i * _ROW
        body += [
            rect(0, y, 12, 12, f"c{i % 4}"),
            text(20, y + 11, name),
            text(WIDTH - 70, y + 11, form(value), "end"),
            text(WIDTH, y + 11, f"{value / total:.1%}", "end"),
        ]
    said = "; ".join(f"{name} {form(value)}, {value / total:.1%}" for name, value in parts)
    return figure(ident, title, said, 46 + len(parts) * _ROW, body)
