"""Writes docs/results.md: every table and figure of the thesis, its number, and ours, from the raw files in results/.

    python docs/results.py

docs/thesis_tables.toml has the thesis' rows and the runs that measure them here. A number of ours is the mean over the seeds whose files there are,
with the standard deviation of the sample; a row without files gets the minutes that its runs would take. A test compares the page with the files.
"""

import json
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from paretorch.workflows.studies import Study, load_study
from paretorch.workflows.studies.estimate import minutes_of, search_minutes, ticket_minutes
from paretorch.workflows.studies.results import collect
from paretorch.workflows.studies.tables import dense_point, points_of, verdicts
from paretorch.workflows.studies.tickets import result_of

ROOT = Path(__file__).resolve().parents[1]
TABLES = ROOT / "docs" / "thesis_tables.toml"
PAGE = ROOT / "docs" / "results.md"
RESULTS = ROOT / "results"

CHAPTERS = {"3": "Sharing", "4": "Sparsity", "5": "Precision", "6": "Optimizers"}
HEAD = ["row of the thesis", "thesis", "here", "seeds", "what was run", "command; minutes, where it was not run"]
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Line:
    """One line of a table. here: empty where nothing was measured. seeds: how many. minutes: for what is not measured yet."""

    row: str
    thesis: str
    here: str = ""
    seeds: int = 0
    what: str = ""
    command: str = ""
    minutes: float = 0.0

    def cells(self) -> list[str]:
        seeds = {0: "", 1: "**one**"}.get(self.seeds, str(self.seeds))
        about = f"about {self.minutes:,.0f} min" if self.minutes >= 1 else "about 1 min" if self.minutes else ""
        left = f"{about} for the rest" if about and self.here else about
        return [
            self.row,
            self.thesis,
            self.here,
            seeds,
            self.what,
            "; ".join(one for one in (self.command, left) if one),
        ]


def spread(values: Sequence[float], form: str) -> str:
    """The mean, with the standard deviation of the sample where there are several."""
    text = form.format(fmean(values))
    return f"{text} ± {form.format(stdev(values))}" if len(values) > 1 else text


def _of(rows: Rows, name: str, scale: float = 1.0) -> list[float]:
    """A metric on test data: where choices are made by a validation part, that at the very end."""
    return [scale * row.get(f"final_{name}", row[name]) for row in rows]


def _accuracy(rows: Rows) -> str:
    return spread(_of(rows, "test_accuracy", 100.0), "{:.2f}")


def _beside(count: str, metric: Callable[[Rows], str], form: str, scale: float = 1.0) -> Callable[[Rows], str]:
    """A count, where the runs have it, and a metric."""

    def shown(rows: Rows) -> str:
        counted = [scale * row[count] for row in rows if count in row]
        return ", ".join([*([form.format(fmean(counted))] if counted else []), metric(rows)])

    return shown


KINDS: dict[str, Callable[[Rows], str]] = {
    "accuracy": _accuracy,
    "errors": lambda rows: ", ".join(
        spread([100.0 - one for one in _of(rows, name, 100.0)], "{:.2f}")
        for name in ("test_accuracy", "test_top5_accuracy")
    ),
    "error": lambda rows: spread([100.0 - one for one in _of(rows, "test_accuracy", 100.0)], "{:.2f}"),
    "f1": lambda rows: spread(_of(rows, "test_f1", 100.0), "{:.1f}"),
    "bpc": lambda rows: spread(_of(rows, "test_bpc"), "{:.3f}"),
    "validation-bpc": lambda rows: spread([row["test_bpc"] for row in rows], "{:.3f}"),
    "bits": _beside("bits", _accuracy, "{:.2f}"),
    "activations": _beside("activation_bits", _accuracy, "{:.2f}"),
    "sparsity": _beside("sparsity", _accuracy, "{:.1f} %", 100.0),
    "frechet": _beside("bits", lambda rows: spread(_of(rows, "test_frechet"), "{:.2f}"), "{:.2f}"),
    "bleu": _beside("bits", lambda rows: spread(_of(rows, "test_bleu"), "{:.1f}"), "{:.2f}"),
}
"""What is shown of the runs of one setting."""


@cache
def study_of(name: str) -> Study:
    return load_study(name)


def _command(study: Study, only: str) -> str:
    chosen = "" if study.tickets or only == "*" else f" --only '{only}'" if "*" in only else f" --only {only}"
    return f"`pare study {study.name}{chosen} --root data`"


class Maker:
    """Makes lines of what is in a folder of results."""

    def __init__(self, results: Path = RESULTS) -> None:
        self.results = results
        self._collected: dict[str, tuple[dict[str, Any], list[str]]] = {}

    def found(self, study: Study) -> dict[str, Any]:
        """The results of the study's runs, by name."""
        return self._collect(study)[0]

    def diverged(self, study: Study) -> list[str]:
        """The names of the runs that diverged: there is nothing left to do for them."""
        return self._collect(study)[1]

    def _collect(self, study: Study) -> tuple[dict[str, Any], list[str]]:
        if study.name not in self._collected:
            self._collected[study.name] = collect(study_of(study.name), self.results / study.name)
        return self._collected[study.name]

    def lines(self, part: dict[str, Any]) -> list[Line]:
        """All lines of a table or figure."""
        return [line for row in part.get("rows", ()) for line in self._lines(part, row)]

    def _lines(self, part: dict[str, Any], row: dict[str, Any]) -> list[Line]:
        name, thesis = row["row"], row["thesis"]
        if row.get("quoted"):
            return [Line(name, thesis, what="quoted by the thesis; not run")]
        if "file" in row:
            return [self._from_file(row)]
        kind, made = row.get("kind", part.get("kind")), []
        for number, text in enumerate(row["ours"]):
            place, _, what = (one.strip() for one in text.partition("|"))
            study, _, setting = place.rpartition("/")
            first = (name, thesis) if number == 0 else ("", "")
            made.append(self._line(study_of(study or part["study"]), setting, kind, *first, what))
        return made

    def _line(self, study: Study, setting: str, kind: str, name: str, thesis: str, what: str) -> Line:
        make = {
            "within": self._within,
            "runs": self._runs,
            "tickets": self._all_tickets,
            "round": self._round,
            "ticket-dense": self._ticket,
            "sparsest": self._ticket,
            "best": self._ticket,
        }.get(kind, self._setting)
        here, seeds, minutes = make(study, setting, kind)
        return Line(name, thesis, here, seeds, what or setting, _command(study, setting), minutes)

    def _setting(self, study: Study, setting: str, kind: str) -> tuple[str, int, float]:
        names = [f"{setting}-seed{seed}" for seed in study.seeds]
        rows = [self.found(study)[name] for name in names if name in self.found(study)]
        ended = [name for name in names if name in self.diverged(study)]
        left = (len(names) - len(rows) - len(ended)) * minutes_of(study.settings[setting])
        told = [*([KINDS[kind](rows)] if rows else []), *([f"{len(ended)} diverged"] if ended else [])]
        return "; ".join(told), len(rows) + len(ended), left

    def _within(self, study: Study, family: str, kind: str) -> tuple[str, int, float]:
        own = study.only([family, "dense"])
        points = points_of(own, self.found(study))
        dense = dense_point(own, points)
        done = {name for name in self.found(study) if not name.startswith("dense-")}
        jobs = [(name, recipe) for name, recipe in own.jobs() if not name.startswith("dense-")]
        left = sum(minutes_of(recipe) for name, recipe in jobs if name not in done)
        tried = [point for point in points if point.family == family]
        verdict = next((one for one in verdicts(own, points) if one.family == family), None)
        if not tried or dense is None or verdict is None:
            return "", 0, left
        if (best := verdict.point) is None:
            return f"none of {len(tried)} sparsities that were tried", min(one.seeds for one in tried), left
        values, whole = (self._tests(own, one.setting) for one in (best, dense))
        told = f"{100 * best.sparsity:.1f} ({spread(values, '{:.2f}')}; dense {spread(whole, '{:.2f}')})"
        return f"{told}, of {len(tried)} sparsities that were tried", best.seeds, left

    def _tests(self, study: Study, setting: str) -> list[float]:
        found = self.found(study_of(study.name))
        rows = [found[name] for seed in study.seeds if (name := f"{setting}-seed{seed}") in found]
        return _of(rows, "test_accuracy", 100.0)

    def _runs(self, study: Study, pattern: str, kind: str) -> tuple[str, int, float]:
        chosen = study.only([pattern])
        done = [name for name, _ in chosen.jobs() if name in self.found(study) or name in self.diverged(study)]
        left = sum(minutes_of(recipe) for name, recipe in chosen.jobs() if name not in done)
        if not done:
            return "", 0, left
        seeds = len({name.rpartition("-seed")[2] for name in done})
        return f"{len(done)} of {len(chosen.jobs())} runs: [results/{study.name}](../results/{study.name})", seeds, left

    def _tickets_of(self, study: Study) -> Any:
        path = self.results / study.name / "tickets.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return result_of(rows, study.seeds)

    def _all_tickets(self, study: Study, pattern: str, kind: str) -> tuple[str, int, float]:
        result = self._tickets_of(study)
        if not result.tickets:
            return "", 0, ticket_minutes(study)
        seeds = len({row["seed"] for row in result.tickets})
        return f"{len(result.tickets)} tickets: [results/{study.name}](../results/{study.name})", seeds, 0.0

    def _round(self, study: Study, place: str, kind: str) -> tuple[str, int, float]:
        """One ticket of a search, named as in "imp-rate0.2 10": what it has without training, and its accuracy."""
        label, number = place.split()
        names = [f"{label}-seed{seed}" for seed in study.seeds]
        rows = [
            row for row in self._tickets_of(study).tickets if row["search"] in names and row["round"] == int(number)
        ]
        sparsity = f"{fmean(100.0 * row['sparsity'] for row in rows):.1f} %, {_accuracy(rows)}" if rows else ""
        return sparsity, len(rows), 0.0 if rows else search_minutes(study, label)

    def _ticket(self, study: Study, method: str, kind: str) -> tuple[str, int, float]:
        result = self._tickets_of(study)
        if kind == "ticket-dense":
            rows, left = result.dense, ticket_minutes(study, ["none"])
        else:
            own = [one for one in result.found() if one.method == method]
            rows, left = [one.best if kind == "best" else one.sparsest for one in own], ticket_minutes(study, [method])
            if own and not any(rows):
                return f"none matches in {len(own)} seeds", len(own), 0.0
        rows = [row for row in rows if row is not None]
        if not rows:
            return "", 0, left
        kept = spread([100.0 * (1.0 - row["sparsity"]) for row in rows], "{:.1f}")
        rounds = " / ".join(str(row["round"]) for row in rows)
        return f"{spread(_of(rows, 'test_accuracy', 100.0), '{:.2f}')}, {kept}, {rounds}", len(rows), 0.0

    def _from_file(self, row: dict[str, Any]) -> Line:
        content = json.loads((self.results / row["file"]).read_text())
        command = content.get("command") or content["environment"]["command"]
        value = content
        for key in row["path"].split("/"):
            value = value[int(key)] if isinstance(value, list) else value[key]
        values = value if isinstance(value, list) else [value]
        if row["form"] == "error":
            here = spread([100.0 * (1.0 - one) for one in values], "{:.2f}")
        else:
            here = spread(values, row["form"])
        seeds = row.get("seeds", len(values))
        file = f"[{row['file']}](../results/{row['file']})"
        return Line(row["row"], row["thesis"], here, seeds, file, f"`{command}`")


INTRODUCTION = """# The thesis, table by table

<!-- Written by `python docs/results.py` from docs/thesis_tables.toml and results/; edit those, not this page. -->

Every table and figure of Savarese (2025), *Principled Approximation Methods for Efficient and Scalable Deep Learning*, in its own order and with every row: the thesis' number, and what was measured here. Numbers of ours
are means ± standard deviations of the sample over the seeds, of the network after the last epoch, on test data that nothing was chosen by (but for the rates of generators, as in the thesis); **one** seed has no spread. Recipes, seeds, hardware and every epoch are in the raw
files in [results/](../results/README.md); "what was run" names the setting of the study, or what differs in it.

The methods here are not the thesis' to the letter: "as printed" are `ContinuousSparsification.as_printed` and `SMOL.as_printed`, everything else has the changes that the pages of the methods list.

An empty cell was not measured. Beside it are the minutes that its runs would take on one H200, one after another: epochs times the seconds of an epoch, measured for ResNet-20, VGG-16, WRN-28-4, WRN-28-10 and LSTM(300) (results/train-step and
the metrics of runs), by multiply-adds for other Wide ResNets, assumed for the rest (`paretorch.workflows.studies.estimate`); expect an error of a third. Several runs at once take less in all. Nothing was
measured on ImageNet: its studies are ready, and one setting of each was tried end to end on a few small images in its place ([many-gpus.md](many-gpus.md#imagenet)).
"""


def page(results: Path = RESULTS, tables: Path = TABLES) -> str:
    """The whole page."""
    parts, maker = tomllib.loads(tables.read_text(encoding="utf-8"))["part"], Maker(results)
    made = [(part, maker.lines(part)) for part in parts]
    lines = [line for _, own in made for line in own]
    measured = sum(bool(line.here) for line in lines)
    quoted = sum(line.what.startswith("quoted") for line in lines)
    open_ = sum(not line.here and not line.what.startswith("quoted") for line in lines)
    text = [
        INTRODUCTION,
        f"{len(parts)} tables and figures, {len(lines)} lines: {measured} measured, {quoted} quoted by the thesis itself, {open_} empty.\n",
    ]
    chapter = ""
    for part, own in made:
        number = part["label"].split()[1].split(".")[0]
        if number != chapter:
            chapter = number
            text.append(f"## Chapter {chapter}: {CHAPTERS[chapter]}\n")
        text.append(f"### {part['label']}: {part['title']}\n")
        if part.get("illustration"):
            text.append("An illustration: there is nothing to measure.\n")
            continue
        text.append(f"Shown: {part['shows']}.\n")
        text += [_row(HEAD), "|" + "---|" * len(HEAD), *(_row(line.cells()) for line in own), ""]
    return "\n".join(text)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
