"""`export`: one file for one inference runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from paretorch.deploy.artefact import StrPath
from paretorch.deploy.codec.container import require_plain_values
from paretorch.deploy.onnx import export_onnx
from paretorch.deploy.plain import copied
from paretorch.deploy.plain import plain as plain_module
from paretorch.deploy.runtimes.gguf_file import write_gguf
from paretorch.deploy.runtimes.registry import find_runtime
from paretorch.errors import ConfigError, PareWarning, warn
from paretorch.support.inputs import Example

_SHOWN = 3  # names of layers in a message


def export(
    model: nn.Module,
    path: StrPath,
    *,
    runtime: str,
    example: Example | None = None,
    tokenizer: Any = None,
    cache: bool = False,
) -> Path:
    """Write the module as a file of an inference runtime, and return its path.

    The file has exactly the values of the module: weights that lie on a grid of the runtime, as `compress(runtime=)` trains them, as codes
    and steps; others in fp16 if that is exact, else in fp32, with a warning that counts them. It is read back by the runtime's own package before
    it replaces anything, and ONNX files are run.

    Args:
        runtime: "onnxruntime-int8", "onnxruntime-int4", "openvino", "gguf:Q8_0", "gguf:Q4_0" or "gguf:TQ2_0".
        example: A batch of inputs, as `export_onnx` takes it; needed for ONNX files.
        tokenizer: For GGUF files of networks like Llama: a fast tokenizer of transformers or tokenizers. Without one the file has no
            text, and programs give and get the numbers of tokens.
        cache: For ONNX files of language models: keys and values of earlier tokens are inputs and outputs, as in `export_onnx`.

    Example:
        >>> import tempfile, torch, paretorch as pt
        >>> network = torch.nn.Sequential(torch.nn.Linear(64, 32))
        >>> small = pt.compress(network, pt.SMOL(), steps=1, runtime="gguf:Q4_0").finalize()  # after the steps of your loop
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pt.export(small, folder + "/network.gguf", runtime="gguf:Q4_0").stat().st_size
        1504
    """
    target = find_runtime(runtime)
    if target.kind == "onnx":
        if example is None:
            raise ConfigError(
                f"runtime={runtime!r} reads ONNX files, which are traced: give example=, a batch of inputs"
            )
        if tokenizer is not None:
            raise ConfigError(f"tokenizer= is for GGUF files: leave it out for runtime={runtime!r}")
        return export_onnx(model, example, path, runtime=runtime, cache=cache)
    if cache:
        raise ConfigError(f"cache= is for ONNX files: leave it out for runtime={runtime!r}")
    target.require_package()
    plain = copied(plain_module(model, "export"), "export").cpu().float()
    require_plain_values(plain.state_dict())
    where = Path(path)
    if where.is_dir():
        raise ConfigError(f"{where} is a folder: give the file, such as {where / 'model.gguf'}")
    off = write_gguf(plain, where, target, tokenizer)
    if off:
        names = ", ".join(off[:_SHOWN]) + (" …" if len(off) > _SHOWN else "")
        warn(
            f"{where.name} has {len(off)} weights in fp16 or fp32, since they lie on no grid of {runtime!r} ({names}): train them "
            f"with compress(runtime={runtime!r})",
            PareWarning,
        )
    return where
