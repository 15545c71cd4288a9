"""From networks to points: every file really written, its accuracy measured from what the file gives back.

What was measured is kept in measured.json at once, and taken from there where the artefact it was made from has not changed.
"""

import functools
import hashlib
import json
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paretorch.cli.bench_sources import Source
from paretorch.edits import KeepChannels, edits_of
from paretorch.errors import ArtefactError, ConfigError, MissingExtraError, PareError
from paretorch.report.pareto import Point, as_rows
from paretorch.support.eval_mode import in_eval, run_example
from paretorch.support.files import read_json
from paretorch.training.files import write_atomically
from paretorch.training.tasks import Task

Log = Callable[[str], None]
_CALIBRATION = 8  # batches of 64 training images for the ranges of int8


@dataclass(frozen=True)
class File:
    """A way to keep a network: the family of its points, the end of its name, how it is written and read back."""

    family: str
    suffix: str
    write: Callable[[nn.Module, Path], Any]
    read: Callable[[Path, nn.Module], nn.Module]


class Bench:
    """Measures files on one data set, in the folder `out`.

    Args:
        log: Called with a line for each point when it is measured.
        own: Makes the task of a user's own data, which is no set of images of the zoo.
    """

    def __init__(
        self,
        data: str,
        out: Path,
        *,
        root: str | None,
        device: torch.device,
        log: Log,
        own: Callable[[], Task] | None = None,
    ) -> None:
        self._data, self._out, self._root, self._device, self._log, self._own = data, out, root, device, log, own
        self._measurements = out / "measured.json"
        self._known = _read_measured(self._measurements, data)
        self._rows: list[dict[str, Any]] = []
        self.missing: dict[str, str] = {}

    def add(self, source: Source) -> None:
        """Measure the files of a network, or remember them."""
        made_from = hashlib.sha256(source.artefact.read_bytes()).hexdigest()[:16]
        network = functools.cache(lambda: _load(source))
        for file in self._files(source, network):
            row = self._remembered(source, file, made_from) or self._measured(source, file, made_from, network)
            if row is not None:
                self._rows.append(row)

    def points(self) -> list[Point]:
        """What there is so far, our files first."""
        rows = sorted(self._rows, key=lambda row: not row["family"].startswith("paretorch"))
        return [Point(**{name: row[name] for name in Point.__dataclass_fields__}) for row in rows]

    def record(self) -> dict[str, Any]:
        """All points as plain values, smallest file first: what bench.json holds."""
        rows = {(row["name"], row["family"]): row for row in self._rows}
        points = [{**rows[one["name"], one["family"]], **one} for one in as_rows(self.points())]
        return {"data": self._data, "command": shlex.join(["pare", *sys.argv[1:]]), "points": points}

    def _files(self, source: Source, network: Callable[[], nn.Module]) -> list[File]:
        """What a network is written as: a dense one as others would, one of another's pruning too, ours as it is."""
        if not source.is_dense and not source.is_rival:
            return [File(source.family, ".pare", lambda model, path: None, lambda path, like: like)]
        if any(isinstance(edit, KeepChannels) for edit in edits_of(network())):
            return [_plain("channels pruned, fp16", torch.float16)]
        if source.is_rival:
            from paretorch.deploy.rivals import read_sparse, write_sparse

            assert source.recipe is not None
            return [
                File(f"{source.recipe.compression.pruning} pruned, fp16 + zstd", ".fp16.zst", write_sparse, read_sparse)
            ]
        plain = [_plain("dense fp32", torch.float32), _plain("dense fp16", torch.float16)]
        return [*plain, _weight_int8(), self._int8()]

    def _int8(self) -> File:
        from paretorch.deploy.rivals import OnnxNetwork, write_int8

        def write(model: nn.Module, path: Path) -> Any:
            return write_int8(model, path, self._inputs())

        return File("onnxruntime int8", ".int8.onnx", write, lambda path, like: OnnxNetwork(path))

    def _remembered(self, source: Source, file: File, made_from: str) -> dict[str, Any] | None:
        row = self._known.get((made_from, file.family))
        if row is None:
            return None
        path = self._out / row["file"]
        if not path.exists() or path.stat().st_size != row["bytes"]:
            return None
        return {**row, "name": source.name}

    def _measured(
        self, source: Source, file: File, made_from: str, network: Callable[[], nn.Module]
    ) -> dict[str, Any] | None:
        task = self._task  # first: without the data there is nothing to write a file for
        own = file.suffix == ".pare"
        path = source.artefact if own else self._out / "files" / f"{source.name}{file.suffix}"
        _require_fit(source, network(), task.example())
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file.write(network(), path)
            read = file.read(path, network())
        except MissingExtraError as error:
            self.missing[file.family] = str(error)
            return None
        except ConfigError as error:  # a network that such a file cannot hold
            self.missing[f"{source.name}, {file.family}"] = str(error)
            return None
        accuracy = task.evaluate(read.to(self._device).eval()).get("test_accuracy")
        if accuracy is None:
            raise ConfigError(f"{source.name} has no accuracy to draw: {self._data} is not classified")
        size = path.stat().st_size
        self._log(f"{source.name}, {file.family}: {size:,} bytes, {accuracy:.2%}")
        row = {
            "name": source.name,
            "family": file.family,
            "bytes": size,
            "accuracy": accuracy,
            "file": os.path.relpath(path, self._out),
            "made_from": made_from,
        }
        self._known[made_from, file.family] = row
        self._write(self._measurements, {"data": self._data, "points": list(self._known.values())})
        return row

    @functools.cached_property
    def _task(self) -> Task:
        from paretorch import zoo
        from paretorch.training import ImageClassification
        from paretorch.zoo.data import Augment

        if self._own is not None:
            return self._own()
        images = zoo.data.load(self._data, self._root)
        return ImageClassification(images, batch=64, how=Augment(0, False, 0), device=self._device)

    def _inputs(self) -> list[torch.Tensor]:
        found = getattr(self._task, "inputs", None)
        batches = [] if found is None else found(0, _CALIBRATION)
        if not batches or not all(isinstance(batch, torch.Tensor) for batch in batches):
            raise ConfigError("it takes networks of one tensor here")
        return [batch.cpu() for batch in batches]

    def write(self) -> Path:
        """Write bench.json and return its path."""
        return self._write(self._out / "bench.json", self.record())

    def _write(self, path: Path, content: dict[str, Any]) -> Path:
        self._out.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
        return path


def _plain(family: str, dtype: torch.dtype) -> File:
    from paretorch.deploy.rivals import read_plain, write_plain

    suffix = ".fp16.safetensors" if dtype == torch.float16 else ".fp32.safetensors"
    return File(family, suffix, lambda model, path: write_plain(model, path, dtype), read_plain)


def _weight_int8() -> File:
    from paretorch.deploy.rivals import read_weight_int8, write_weight_int8

    return File("int8 weights", ".int8.safetensors", write_weight_int8, read_weight_int8)


def _load(source: Source) -> nn.Module:
    try:
        return source.finished.network()
    except ConfigError:
        raise  # it says which option is missing
    except PareError as error:
        raise ArtefactError(f"{source.artefact}: {error}") from error


def _require_fit(source: Source, network: nn.Module, example: Any) -> None:
    if isinstance(example, torch.Tensor) and example.is_floating_point():
        example = example[:1].float()
    try:
        with in_eval(network):
            run_example(network, example)
    except ConfigError as error:
        raise ConfigError(f"{source.artefact} cannot take the images of {source.data}: {error}") from error


def _read_measured(path: Path, data: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Points of before by what they were made from; nothing of a file that is damaged or of other data."""
    try:
        content = read_json(path)
        rows = content["points"] if content["data"] == data else []
        found = {(row["made_from"], row["family"]): row for row in rows}
        return {key: row for key, row in found.items() if {"file", "bytes", "accuracy"} <= set(row)}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
