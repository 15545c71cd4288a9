"""PEFT: adapters on a network that was compressed, on one that is being compressed, and merged before."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn

import paretorch as pt
from paretorch.edits import EDITS, KeepChannels, Scale, Share, edits_of
from paretorch.errors import ConfigError

TOKENS = torch.arange(16)[None] % 7


def gpt() -> Any:
    torch.manual_seed(0)
    options = {"bos_token_id": 0, "eos_token_id": 0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=2, n_head=2, **options)
    return transformers.GPT2LMHeadModel(config)


class Cut(nn.Module):
    """Layers that lose channels."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(x).relu())


def adapted(model: nn.Module, *targets: str, start: float = 0.0) -> PeftModel:
    """The model with adapters, which change its outputs if they do not start from zero."""
    with warnings.catch_warnings(action="ignore"):  # of Conv1D, which it finds by itself
        made = get_peft_model(model, LoraConfig(target_modules=list(targets), r=2, init_lora_weights=True))
    for name, parameter in made.named_parameters():
        if start and "lora_B" in name:
            nn.init.normal_(parameter, std=start)
    return made.eval()


def small_gpt() -> Any:
    model = gpt()
    for block in model.transformer.h:
        block.attn.c_attn.weight.data *= 8  # so that its grid has a scale, which its file says
    return pt.compress(model, pt.SMOL(target_bits=4.0), steps=1).finalize().eval()


def small_cut() -> Cut:
    plan = pt.compress(
        model := Cut(), pt.ContinuousSparsification(target=0.5, group="channel"), pt.SMOL(target_bits=4.0), steps=1,
        example=torch.randn(4, 8),
    )  # fmt: skip
    plan.finalize()
    return model.eval()


def train(model: nn.Module, plan: pt.Plan | None, steps: int) -> None:
    parameters = plan.param_groups() if plan else [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(steps):
        model(input_ids=TOKENS, labels=TOKENS).loss.backward()
        optimizer.step()
        if plan is not None:
            plan.step()
        optimizer.zero_grad()


def test_adapters_on_a_compressed_network_are_saved_with_it(tmp_path: Path) -> None:
    """The file of the whole, and of what PEFT saves by itself on top of the file of the base."""
    base = small_gpt()
    pt.save(base, tmp_path / "base.pare")
    before = {name: value.clone() for name, value in base.state_dict().items()}
    model = adapted(base, "c_attn")
    train(model, None, 3)
    model.eval()
    assert all(torch.equal(value, model.state_dict()[moved(name)]) for name, value in before.items())
    expected = model(TOKENS).logits
    pt.save(model, tmp_path / "both.pare")
    whole = pt.load(tmp_path / "both.pare", into=adapted(gpt(), "c_attn"))
    assert torch.equal(whole.eval()(TOKENS).logits, expected)
    again = pt.load(tmp_path / "both.pare", into=adapted(small_gpt(), "c_attn"))
    assert torch.equal(again.eval()(TOKENS).logits, expected)
    scales = {edit.weight for edit in edits_of(model) if isinstance(edit, Scale)}
    assert scales <= set(model.state_dict())
    assert any("base_layer" in name for name in scales)
    model.save_pretrained(tmp_path / "adapter")
    parts = PeftModel.from_pretrained(pt.load(tmp_path / "base.pare", into=gpt()), tmp_path / "adapter").eval()
    assert torch.equal(parts(TOKENS).logits, expected)


def moved(name: str) -> str:
    name = name.replace(".c_attn.", ".c_attn.base_layer.")
    return f"base_model.model.{name}"


def test_adapters_on_a_network_without_some_of_its_channels(tmp_path: Path) -> None:
    model, x = adapted(small_cut(), "fc1", start=0.1), torch.randn(3, 8)
    cuts = [edit for edit in edits_of(model) if isinstance(edit, KeepChannels)]
    assert cuts[0].outputs == ("base_model.model.fc1.base_layer",)
    assert cuts[0].inputs == ("base_model.model.fc2",)
    pt.save(model, tmp_path / "x.pare")
    again = pt.load(tmp_path / "x.pare", into=adapted(small_cut(), "fc1"))
    assert torch.equal(again(x), model(x))
    assert edits_of(again) == edits_of(model)
    assert pt.report(model).bits == pytest.approx(pt.report(again).bits)
    other = adapted(Cut(), "fc1")
    with pytest.raises(pt.PareError, match="lora_B"):  # adapters have the width of the layer that they were made for
        pt.load(tmp_path / "x.pare", into=other)
    assert other(x).shape == (3, 4)


@pytest.mark.parametrize("methods", [[pt.SMOL(target_bits=4.0)], [pt.ContinuousSparsification(target=0.5)]])
def test_adapters_are_not_compressed(methods: list[Any], tmp_path: Path) -> None:
    """Nothing but the base is quantized or pruned; adapters train on in full precision, and the result is saved and loaded."""
    model = adapted(gpt(), "c_attn", start=0.1)
    plan = pt.compress(model, *methods, steps=3)
    assert not any("lora" in name and "paretorch" in name for name, _ in model.named_modules())
    start = {name: value.clone() for name, value in model.named_parameters() if "lora" in name}
    train(model.train(), plan, 3)
    plan.harden()
    train(model, plan, 1)
    small = plan.finalize().eval()
    lora = {name: value for name, value in small.named_parameters() if "lora" in name}
    assert lora.keys() == start.keys()
    assert all(not torch.equal(value, start[name]) for name, value in lora.items())
    assert all(len(value.unique()) == value.numel() for value in lora.values())
    pt.save(small, tmp_path / "x.pare")
    again = pt.load(tmp_path / "x.pare", into=adapted(gpt(), "c_attn")).eval()
    assert torch.equal(again(TOKENS).logits, small(TOKENS).logits)


def test_adapters_are_compressed_if_they_are_named() -> None:
    model = adapted(gpt(), "c_attn", start=0.1)
    plan = pt.compress(model, pt.SMOL(target_bits=4.0, include="*lora_A*"), steps=1)
    names = [name for name, module in model.named_modules() if name.endswith("paretorch_weight")]
    assert len(names) == 2
    assert all("lora_A" in name for name in names)
    assert plan.finalize() is model


def test_a_network_merged_before(tmp_path: Path) -> None:
    """Merged adapters are weights like any other; merged into a compressed network they leave its grid, and nothing claims otherwise."""
    merged = adapted(gpt(), "c_attn", start=0.1).merge_and_unload()
    small = pt.compress(merged, pt.SMOL(target_bits=4.0), steps=1).finalize().eval()
    pt.save(small, tmp_path / "x.pare")
    assert torch.equal(pt.load(tmp_path / "x.pare", into=gpt()).eval()(TOKENS).logits, small(TOKENS).logits)
    late = adapted(small_gpt(), "c_attn", start=0.1).merge_and_unload().eval()
    pt.save(late, tmp_path / "y.pare")
    assert torch.equal(pt.load(tmp_path / "y.pare", into=gpt()).eval()(TOKENS).logits, late(TOKENS).logits)
    assert pt.report(late).bits > pt.report(small_gpt()).bits + 1


def test_layers_that_share_weights_are_saved_alone(tmp_path: Path) -> None:
    shared = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    edit = Share("shared_0", 1, ("0.weight", "1.weight"), ((0,), (0,)))
    edit.apply(shared)
    shared.__dict__[EDITS] = [edit]
    outer = nn.ModuleDict({"body": shared})
    with pytest.raises(
        ConfigError, match=r"'body' has layers that share weights.* save, load and report that module alone"
    ):
        pt.save(outer, tmp_path / "x.pare")
    assert not (tmp_path / "x.pare").exists()
    pt.save(outer["body"], tmp_path / "x.pare")


def test_a_compressed_part_of_a_network(tmp_path: Path) -> None:
    """The backbone lost channels by itself: the file of the whole says so, by the names in the whole."""
    whole = nn.Sequential(small_cut(), nn.ReLU(), nn.Linear(4, 2))
    pt.save(whole, tmp_path / "x.pare")
    again = pt.load(tmp_path / "x.pare", into=nn.Sequential(Cut(), nn.ReLU(), nn.Linear(4, 2)))
    x = torch.randn(3, 8)
    assert torch.equal(again(x), whole(x))
    pt.save(again, tmp_path / "y.pare")
    assert (tmp_path / "y.pare").read_bytes() == (tmp_path / "x.pare").read_bytes()
