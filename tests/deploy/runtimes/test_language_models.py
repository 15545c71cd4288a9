"""Language models as ONNX: sequences of any length, several inputs, weights packed by blocks."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import paretorch as pt
from paretorch.errors import PareWarning
from tests.deploy.runtimes.nets import Words, batch_for
from tests.deploy.runtimes.test_gguf import llama


def outputs(path: Path, **inputs: Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    return np.asarray(found[0])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("runtime", ["onnxruntime-int4", "openvino"])
def test_a_llama_takes_prompts_of_any_length(tied: bool, runtime: str, tmp_path: Path) -> None:
    model = llama(tied, use_cache=False)
    small = pt.compress(model, pt.SMOL(), steps=1, runtime=runtime).finalize()
    ids = torch.randint(96, (2, 9))
    example = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    path = pt.export(small, tmp_path / "llama.onnx", runtime=runtime, example=example)
    for shape in ((1, 5), (3, 20)):
        words = torch.randint(96, shape)
        mask = torch.ones_like(words)
        wanted = small(input_ids=words, attention_mask=mask).logits.detach().numpy()
        assert np.allclose(outputs(path, input_ids=words, attention_mask=mask), wanted, atol=1e-4)
    graph = onnx.load(path).graph
    dims = [[dim.dim_param for dim in value.type.tensor_type.shape.dim] for value in graph.input]
    assert dims == [["batch", "sequence"]] * 2
    found = Counter(node.op_type for node in graph.node)
    if runtime == "openvino":
        assert found["DequantizeLinear"] == 15 + (not tied)
    else:
        assert found["MatMulNBits"] == 15
        assert found["GatherBlockQuantized"] == 1
    weights = sum(p.numel() for p in small.parameters() if p.dim() > 1)
    assert path.stat().st_size < 0.5 * weights * 1.07 + 60_000


def test_a_dense_network_takes_sequences_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Words().eval()
    path = pt.export_onnx(model, batch_for(model), tmp_path / "words.onnx")
    words = torch.randint(40, (1, 13))
    assert np.allclose(outputs(path, input=words), model(words).detach().numpy(), atol=1e-4)


class Fixed(nn.Module):
    """A linear layer over all tokens: of one length alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.mix = nn.Linear(6, 6)

    def forward(self, words: Tensor) -> Tensor:
        return self.mix(self.embedding(words).transpose(1, 2))  # type: ignore[no-any-return]


class Frozen(nn.Module):
    """Takes any length, and makes that of the example a constant when it is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)

    def forward(self, words: Tensor) -> Tensor:
        return self.embedding(words) * torch.arange(int(words.shape[1]))[None, :, None]


def test_a_network_of_one_length_is_exported_for_that(tmp_path: Path) -> None:
    words = torch.randint(10, (2, 6))
    model = Fixed().eval()
    path = pt.export_onnx(model, words, tmp_path / "fixed.onnx")
    assert np.allclose(outputs(path, input=words), model(words).detach().numpy(), atol=1e-5)


def test_a_length_that_became_a_constant_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = torch.randint(10, (2, 6))
    model = Frozen().eval()
    real = torch.onnx.export

    def constant(module: nn.Module, arguments: object, **options: object) -> object:
        shapes = options.pop("dynamic_shapes")
        fixed = tuple({0: one[0]} for one in shapes)  # type: ignore[attr-defined]
        return real(module, arguments, dynamic_shapes=fixed, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.onnx, "export", constant)
    with pytest.warns(
        PareWarning, match="takes sequences of 6 tokens alone, as the example has: Frozen makes the length"
    ):
        pt.export_onnx(model, words, tmp_path / "frozen.onnx")
