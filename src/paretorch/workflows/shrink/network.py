"""`shrink`: a trained network into a file of so many bytes; the network is its own teacher."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paretorch.core.formats import WeightFormat
from paretorch.deploy import encoded_size, load
from paretorch.deploy.measure.stopwatch import TIMED_ONLY
from paretorch.deploy.plain import copied, plain
from paretorch.edits import edits_of, forget_scales
from paretorch.errors import ConfigError, DivergenceError, PareWarning, warn
from paretorch.support.checks import require_count
from paretorch.support.text import dense_bytes, parse_bytes
from paretorch.training.files import alone_in
from paretorch.training.norms import compact_state, make_compact
from paretorch.workflows.posttraining import post_train
from paretorch.workflows.posttraining.calibration import divergence
from paretorch.workflows.posttraining.layers import find_layers
from paretorch.workflows.shrink.coded import CodedWeights
from paretorch.workflows.shrink.cutting import cut_network
from paretorch.workflows.shrink.folder import ShrinkFolder, ShrinkProgress, describe, fingerprint
from paretorch.workflows.shrink.formatted import FormattedWeights, formats_for, round_to_formats
from paretorch.workflows.shrink.objective import Batches, Objective, estimate_norms
from paretorch.workflows.shrink.tuning import RATES, Tuner, trial_length

_FITS = 0.97  # of the budget: a smaller file is tried again with a smaller μ
_AIM = 0.995  # of the budget, while training and at its end
_ROUNDS = 6


def has_short_vectors(model: nn.Module) -> bool:
    """Whether norms and biases are bfloat16 values, as post-training leaves them if that pays."""
    vectors = [t for t in model.state_dict().values() if t.dtype == torch.float32 and t.dim() == 1]
    return all(bool((t.bfloat16().float() == t).all()) for t in vectors)


@torch.no_grad()
def size_now(student: nn.Module, short: bool) -> int:
    """Return the bytes of the student's file if its vectors are made short as `land` does; the student stays as it is."""
    state = student.state_dict()
    return encoded_size(compact_state(student, state) if short else state, student, edits_of(student))


def size_of(model: nn.Module) -> int:
    """Return the bytes of the file of a rounded network, of which `finish` is still to come."""
    return size_now(model, has_short_vectors(model))


def finish(model: nn.Module, short: bool) -> None:
    """Fold batch norms and round vectors in place, if `short`."""
    if short:
        make_compact(model)


def land(
    student: nn.Module, coded: CodedWeights, objective: Objective, batches: Batches, budget: int, short: bool
) -> int | None:
    """Write the final values into the student so that its file fits; return its bytes, or None if no μ does.

    Args:
        short: Fold batch norms, and round vectors to bfloat16 values.
    """
    coded.write()
    estimate_norms(student, objective, batches)
    fitting: int | None = None
    for _ in range(_ROUNDS):
        coded.write()
        size = size_now(student, short)
        if _FITS * budget <= size <= budget:
            finish(student, short)
            return size
        fitting = size if size <= budget else None
        coded.learn_size(size)
        before = coded.mu
        coded.fit(_AIM * budget)
        if coded.mu == before:  # no finer codes are left
            break
    finish(student, short)
    return fitting


_SHOWN = 10  # steps between two counts of zeros and bits


@dataclass(frozen=True, eq=False)
class Shrunk:
    """What `shrink_network` returns.

    Args:
        model: The small network, a plain module in evaluation mode.
        record: Bytes, zeros, bits, distances from the dense network, the rate and the seconds.
    """

    model: nn.Module
    record: dict[str, Any]


def shrink_network(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    budget: int | str | None = None,
    steps: int = 1000,
    folder: str | Path | None = None,
    progress: str = "auto",
    runtime: str | None = None,
    latency: str | None = None,
) -> Shrunk:
    """As `paretorch.shrink`, and with a record of what was done."""
    require_count("steps", steps, 0, "give the number of training steps, 0 for none")
    network = plain(model, "shrink")
    dense = copied(network, "shrink").requires_grad_(False)
    limit, formats = _wanted(dense, budget, runtime, latency)
    if latency is not None and steps < 2:
        raise ConfigError(
            f"shrink: steps={steps} with latency=, which removes channels: give steps to learn without them"
        )
    changed = {layer.name for layer in find_layers(dense)} if formats is None else formats_for(dense, formats)
    forget_scales(dense, changed)
    path = None if folder is None else Path(folder)
    options = {"budget": limit or None, "runtime": runtime, "latency": latency}
    asked = {name: value for name, value in options.items() if value is not None}
    with ShrinkProgress(progress) as shown, contextlib.nullcontext() if path is None else alone_in(path):
        store = ShrinkFolder(path, {"network": fingerprint(dense), **asked, "steps": steps})
        if (record := store.result()) is not None:
            small = load(store.artefact, into=copied(network, "shrink"))
        else:
            data = Batches(batches, dense, _device_of(dense))
            small, record = dense, {}
            if latency is not None:
                own = steps if formats is None and not limit else steps - steps // 2
                steps -= own
                small, record = cut_network(dense, data, store, latency, runtime, own, shown)
            if limit or formats is not None:
                forms = None if formats is None else formats_for(small, formats)
                small, more = _Job(small, limit, steps, shown, forms, dense).run(data, store)
                record = {**record, **more, "seconds": {**record.get("seconds", {}), **more["seconds"]}}
            store.finish(small, record)
    for ours, theirs in zip(small.parameters(), network.parameters(), strict=True):
        ours.requires_grad_(theirs.requires_grad)
    return Shrunk(small.eval(), record)


def _wanted(
    dense: nn.Module, budget: int | str | None, runtime: str | None, latency: str | None
) -> tuple[int, str | None]:
    """Return the bytes of the file, 0 for any number, and the runtime whose formats the weights get."""
    formats = None if latency is not None and runtime in TIMED_ONLY else runtime
    if (budget is not None and formats is not None) or budget is formats is latency is None:
        both = "not both: the formats of a runtime say how many bytes a weight takes" if budget is not None else "one"
        raise ConfigError(f'shrink: give budget=, such as "1/10", or runtime=, such as "gguf:Q4_0", {both}')
    if budget is not None:
        return parse_bytes(budget, lambda: dense_bytes(dense)), None
    if formats is not None:
        formats_for(dense, formats)  # which raises for an unknown one
    return 0, formats


def _device_of(model: nn.Module) -> torch.device:
    first = next(iter(model.parameters()), None)
    return torch.device("cpu") if first is None else first.device


class _Job:
    """One shrink, from the batches to the small network.

    Args:
        limit: Bytes of the file.
        forms: The format of each weight, in place of a limit.
        teacher: The network to answer as, if that is another one.
    """

    def __init__(
        self,
        dense: nn.Module,
        limit: int,
        steps: int,
        shown: ShrinkProgress,
        forms: dict[str, WeightFormat] | None = None,
        teacher: nn.Module | None = None,
    ) -> None:
        self._forms, self._teacher = forms, dense if teacher is None else teacher
        self._dense, self._limit, self._steps, self._shown = dense, limit, steps, shown
        self._seconds: dict[str, float] = {}

    def run(self, data: Batches, store: ShrinkFolder) -> tuple[nn.Module, dict[str, Any]]:
        objective = Objective(self._teacher, data.calibration[0])
        objective.check([*data.calibration, *data.held_out])
        state = store.load(_device_of(self._dense))
        if not state:
            state = self._round(data, objective)
            store.save(state)
        self._seconds = dict(state["seconds"])
        small = copied(self._dense, "shrink")
        small.load_state_dict(state["rounded"])
        record: dict[str, Any] = {"post_trained_distance": objective.distance(small, data.held_out)}
        size = state["size"]
        if self._steps:
            trained = self._train(small, state, data, objective, store)
            fits = trained.size is not None
            record |= {"rate": trained.rate, "trained_distance": trained.distance if fits else None}
            if trained.size is not None and trained.distance < record["post_trained_distance"]:
                size = trained.size
                record["trained"] = True
            else:  # training did not help on batches that it has not seen
                small.load_state_dict(state["rounded"])
                record["trained"] = False
        if not record.get("trained", False) and self._forms is None:
            finish(small, has_short_vectors(small))
        return small, self._record(size, record)

    def _round(self, data: Batches, objective: Objective) -> dict[str, Any]:
        start = time.perf_counter()
        if self._forms is not None:
            return self._round_to_formats(data, objective, self._forms)
        found = post_train(
            self._dense,
            data.calibration,
            budget=self._limit,
            distance=divergence if objective.is_plain else None,
            meter=size_of,
            progress=lambda phase, done, total: self._shown.show(phase, done, total),
        )
        seconds = {"post_training": time.perf_counter() - start}
        return {
            "rounded": found.model.state_dict(),
            "steps": dict(found.steps),
            "size": found.size,
            "seconds": seconds,
        }

    def _round_to_formats(self, data: Batches, objective: Objective, forms: dict[str, WeightFormat]) -> dict[str, Any]:
        start = time.perf_counter()
        model = copied(self._dense, "shrink")
        steps = round_to_formats(model, forms, data, self._shown.show)
        estimate_norms(model, objective, data)
        seconds = {"post_training": time.perf_counter() - start}
        return {"rounded": model.state_dict(), "steps": steps, "size": size_now(model, False), "seconds": seconds}

    def _weights(self, student: nn.Module, state: dict[str, Any]) -> CodedWeights | FormattedWeights:
        if self._forms is None:
            return CodedWeights(student, self._dense, state["steps"], state["size"])
        return FormattedWeights(student, self._dense, self._forms, state["steps"], state["size"])

    def _train(
        self, student: nn.Module, state: dict[str, Any], data: Batches, objective: Objective, store: ShrinkFolder
    ) -> _Trained:
        start, before = time.perf_counter(), self._seconds.get("training", 0.0)
        short = has_short_vectors(student) and self._forms is None
        coded = self._weights(student, state)
        meter = functools.partial(size_now, student, short)
        tuner = Tuner(student, coded, objective, _AIM * self._limit, meter)

        def keep() -> None:
            self._seconds["training"] = before + time.perf_counter() - start
            store.save({**state, "rate": rate, "tuner": tuner.state(), "seconds": self._seconds})

        def after() -> None:
            if tuner.done % _SHOWN == 0 or tuner.done == self._steps:
                self._shown.show("training", tuner.done, self._steps, _words(tuner))
            if store.is_due():
                keep()

        if "tuner" in state:
            rate = float(state["rate"])
            tuner.load(state["tuner"], rate)
        else:
            tuner.measure(data.calibration)
            rate = self._search(tuner, data)
            if rate == 0.0:
                return _Trained(0.0, float("inf"), None)
            tuner.begin(rate)
            keep()
        try:
            tuner.run(data.train(self._steps, tuner.done), self._steps, after)
        except DivergenceError as error:
            warn(f"shrink: training was given up, the network is the post-trained one. {error}", PareWarning)
            return _Trained(tuner.rate, float("inf"), None)
        if isinstance(coded, CodedWeights):
            size = land(student, coded, objective, data, self._limit, short)
        else:
            coded.write()
            estimate_norms(student, objective, data)
            size = size_now(student, False)
        self._seconds["training"] = before + time.perf_counter() - start
        return _Trained(tuner.rate, objective.distance(student, data.held_out), size)

    def _search(self, tuner: Tuner, data: Batches) -> float:
        trials = [0]

        def on_step() -> None:
            trials[0] += 1
            self._shown.show("learning rate", trials[0], len(RATES) * trial_length(self._steps))

        return tuner.search(data.calibration, data.held_out, self._steps, on_step)

    def _record(self, size: int, record: dict[str, Any]) -> dict[str, Any]:
        return {
            "bytes": size,
            "dense_bytes": dense_bytes(self._teacher),
            **({"budget": self._limit} if self._forms is None else {"formats": _counts(self._forms)}),
            "steps": self._steps,
            **record,
            "seconds": {name: round(value, 1) for name, value in self._seconds.items()},
        }


def _counts(forms: Mapping[str, WeightFormat]) -> dict[str, int]:
    return dict(Counter(form.name for form in forms.values()))


@dataclass(frozen=True)
class _Trained:
    """The rate that was used, the distance on held-out batches, and the bytes; None if the file does not fit."""

    rate: float
    distance: float
    size: int | None


def _words(tuner: Tuner) -> str:
    zeros, bits = tuner.coded.zeros_and_bits()
    return describe(tuner.loss, zeros, bits, tuner.coded.expected())
