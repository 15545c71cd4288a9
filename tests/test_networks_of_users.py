"""Networks that people bring, from `compress` to onnxruntime: each keeps its outputs on the whole way."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from torch import Tensor, nn

import paretorch as pt
from paretorch.support.inputs import named_tensors, read_example
from tests.timm_package import import_timm

_STEPS = 3
TOKENS = {"input_ids": torch.arange(20).reshape(2, 10) % 30, "attention_mask": torch.ones(2, 10, dtype=torch.int64)}
PIXELS = torch.linspace(-1, 1, 2 * 3 * 16 * 16).reshape(2, 3, 16, 16)


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, num_labels=3,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=30, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0, use_cache=False
    )
    return transformers.GPT2LMHeadModel(config)


class TwoInputs(nn.Module):
    """Regression from a picture and a row of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1))
        self.read = nn.Sequential(nn.Linear(5, 12), nn.GELU())
        self.head = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, image: Tensor, numbers: Tensor) -> Tensor:
        seen = self.look(image).mean((2, 3))
        score: Tensor = self.head(torch.cat([seen, self.read(numbers)], 1)).squeeze(1)
        return score


class Tagger(nn.Module):
    """A tag for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 12, padding_idx=0)
        self.lstm = nn.LSTM(12, 10, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(20, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        tags: Tensor = self.tags(self.lstm(self.words(tokens))[0])
        return tags


def _double(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class UNet(nn.Module):
    """Two levels, with a skip connection by concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = _double(3, 8), _double(8, 16)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.join, self.out = _double(16, 8), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down(x)
        deep = self.up(self.deep(nn.functional.max_pool2d(first, 2)))
        mask: Tensor = self.out(self.join(torch.cat([first, deep], 1)))
        return mask


class Detector(nn.Module):
    """Boxes and scores at two scales, in a dict with lists, as detectors return them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.next = _double(3, 8), nn.Sequential(nn.MaxPool2d(2), _double(8, 8))
        self.boxes = nn.ModuleList(nn.Conv2d(8, 4, 1) for _ in range(2))
        self.scores = nn.ModuleList(nn.Conv2d(8, 6, 1) for _ in range(2))

    def forward(self, x: Tensor) -> dict[str, list[Tensor]]:
        levels = [self.stem(x)]
        levels.append(self.next(levels[0]))
        return {
            "boxes": [head(level).flatten(2).transpose(1, 2) for head, level in zip(self.boxes, levels, strict=True)],
            "scores": [head(level).flatten(2).transpose(1, 2) for head, level in zip(self.scores, levels, strict=True)],
        }


def vit() -> nn.Module:
    options = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5}
    built: nn.Module = import_timm().create_model("vit_tiny_patch16_224", **options)
    return built


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "bert": (bert, TOKENS),
    "gpt2": (gpt2, TOKENS),
    "two_inputs": (TwoInputs, {"image": PIXELS, "numbers": torch.linspace(-1, 1, 10).reshape(2, 5)}),
    "tagger": (Tagger, TOKENS["input_ids"]),
    "unet": (UNet, PIXELS),
    "detector": (Detector, PIXELS),
    "vit": (vit, PIXELS),
}
# With masks of channels where they can be removed, which is all of the way; `make contract` also has those with masks of weights.
CHANNELS = ("bert", "two_inputs", "unet", "detector", "vit")
CASES = [pytest.param(name, False, marks=[pytest.mark.contract] * (name in CHANNELS)) for name in NETWORKS]
CASES += [pytest.param(name, True) for name in CHANNELS]


def trained(name: str, channels: bool) -> tuple[nn.Module, Any]:
    """The network after compress, a few steps and finalize; masks of channels where they can be removed."""
    build, example = NETWORKS[name]
    torch.manual_seed(0)
    model = build()
    masks = pt.ContinuousSparsification(target=0.4, group="channel" if channels else "weight")
    bits = pt.SMOL(target_bits=4.0, group="channel")
    plan = pt.compress(model, masks, bits, steps=_STEPS, example=example if channels else None)
    optimizer = torch.optim.AdamW(plan.param_groups(), lr=1e-2)
    call = read_example(example)
    for _ in range(_STEPS):
        sum(part.float().square().mean() for part in named_tensors(call(model)).values()).backward()
        optimizer.step()
        plan.step()
        optimizer.zero_grad()
    plan.harden(optimizer)
    model.eval()
    before = outputs(model, example)
    small = plan.finalize()
    check_equal(outputs(small, example), before, atol=1e-5)
    return small, example


def outputs(model: nn.Module, example: Any) -> dict[str, Tensor]:
    with torch.no_grad():
        return named_tensors(read_example(example)(model))


def check_equal(found: dict[str, Tensor], expected: dict[str, Tensor], atol: float = 0.0) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=atol, msg=name)


@pytest.mark.parametrize(("name", "channels"), CASES)
def test_from_compress_to_onnxruntime(name: str, channels: bool, tmp_path: Path) -> None:
    small, example = trained(name, channels)
    build, _ = NETWORKS[name]
    whole = build()
    if channels:
        assert sum(p.numel() for p in small.parameters()) < 0.9 * sum(p.numel() for p in whole.parameters())
    expected = outputs(small, example)
    pt.save(small, tmp_path / "net.pare")
    back = pt.load(tmp_path / "net.pare", into=whole).eval()
    check_equal(outputs(back, example), expected)
    report = pt.report(back, example=example, latency=False)
    assert report.sizes.total == (tmp_path / "net.pare").stat().st_size
    assert report.macs
    path = pt.export_onnx(back, example, tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    call = read_example(example)
    feed = dict(zip(call.names(back), (tensor.numpy() for tensor in call.tensors), strict=True))
    found = dict(zip([one.name for one in session.get_outputs()], session.run(None, feed), strict=True))
    assert found.keys() == expected.keys()
    for part, tensor in expected.items():
        np.testing.assert_allclose(found[part], tensor.numpy(), atol=1e-4, err_msg=part)
