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
from paretorch.deploy.runtimes.executorch_file import write_executorch
from paretorch.deploy.runtimes.gguf_file import write_gguf
from paretorch.deploy.runtimes.registry import Runtime, find_runtime
from paretorch.deploy.runtimes.torchao_file import write_torchao
from paretorch.errors import ConfigError, PareWarning, warn
from paretorch.support.inputs import Example, read_example

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
    and steps; others in fp16 if that is exact and the runtime has it, else in fp32, with a warning that counts them. It is read back by the runtime's
    own package before it replaces anything; ONNX files and programs of ExecuTorch are run.

    Args:
        runtime: "onnxruntime-int8", "onnxruntime-int4", "openvino", "executorch", "torchao-int4", "gguf:Q8_0", "gguf:Q4_0" or "gguf:TQ2_0".
        example: A batch of inputs, as `export_onnx` takes it; needed for ONNX files and for ExecuTorch, whose programs take as many rows and tokens
            at most.
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
    _check_arguments(target, example, tokenizer, cache)
    if target.kind == "onnx":
        assert example is not None
        return export_onnx(model, example, path, runtime=runtime, cache=cache)
    target.require_package()
    plain = copied(plain_module(model, "export"), "export").cpu().float()
    require_plain_values(plain.state_dict())
    where = Path(path)
    if where.is_dir():
        raise ConfigError(f"{where} is a folder: give the file, such as {where / f'model{target.suffix}'}")
    if target.kind == "gguf":
        off = write_gguf(plain, where, target, tokenizer)
    elif target.kind == "torchao":
        off = write_torchao(plain, where, target)
    else:
        call = read_example(example).map(lambda tensor: tensor.detach()).to("cpu")
        off = write_executorch(plain, call, where, target)
    if off:
        names = ", ".join(off[:_SHOWN]) + (" …" if len(off) > _SHOWN else "")
        warn(
            f"{where.name} has {len(off)} weights in {'fp16 or fp32' if target.has_halves else 'fp32'}, since they lie on no grid of {runtime!r} "
            f"({names}): train them with compress(runtime={runtime!r})",
            PareWarning,
        )
    return where


def _check_arguments(target: Runtime, example: Example | None, tokenizer: Any, cache: bool) -> None:
    if target.is_traced and example is None:
        raise ConfigError(
            f"runtime={target.name!r} reads {target.suffix} files, which are traced: give example=, a batch of inputs"
        )
    if tokenizer is not None and target.kind != "gguf":
        raise ConfigError(f"tokenizer= is for GGUF files: leave it out for runtime={target.name!r}")
    if cache and target.kind != "onnx":
        raise ConfigError(f"cache= is for ONNX files: leave it out for runtime={target.name!r}")
