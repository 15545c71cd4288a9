"""Networks on the hub: what is uploaded is what comes back. Requests alone are replaced: an upload fills the cache that downloads read."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub import HfApi, ModelCard
from torch import Tensor, nn

import paretorch as pt
from paretorch import zoo
from paretorch.errors import ArtefactError, ConfigError
from paretorch.report.hub import HubMixin, from_pretrained, push_to_hub, save_pretrained

NAME = "me/small"
TOKENS = torch.arange(16)[None] % 7


class Hub:
    """A cache of downloads; what `HfApi` uploads goes into it, and no request is made."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache, self.calls = folder, list[str]()
        monkeypatch.setattr(HfApi, "create_repo", self._create)
        monkeypatch.setattr(HfApi, "upload_folder", self._upload)

    def _create(self, repo_id: str, **_: Any) -> Any:
        self.calls.append("create")
        return SimpleNamespace(repo_id=repo_id)

    def _upload(self, *, repo_id: str, folder_path: Any, **_: Any) -> str:
        self.calls.append("upload")
        commit = "0" * 40
        own = self.cache / f"models--{repo_id.replace('/', '--')}"
        shutil.copytree(folder_path, own / "snapshots" / commit)
        (own / "refs").mkdir()
        (own / "refs" / "main").write_text(commit)
        return f"https://hub/{repo_id}/commit/{commit}"

    def file(self, name: str) -> Path:
        return self.cache / "models--me--small" / "snapshots" / ("0" * 40) / name

    def back(self, into: nn.Module | None = None) -> nn.Module:
        return from_pretrained(NAME, into, cache_dir=self.cache, local_files_only=True)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(tmp_path / "cache", monkeypatch)


def bert() -> Any:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 64,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    return transformers.BertForMaskedLM(transformers.BertConfig(**sizes, max_position_embeddings=16))


def cut_bert() -> Any:
    """Without half of the channels between the two linear layers of each block, which no configuration can say."""
    model = bert()
    channels = pt.ContinuousSparsification(
        target=0.5, group="channel", include=["*intermediate.dense", "*.output.dense"]
    )
    plan = pt.compress(model, channels, pt.SMOL(target_bits=4.0), steps=1, example={"input_ids": TOKENS})
    return plan.finalize().eval()


class Mine(nn.Module, HubMixin):
    def __init__(self, width: int = 8, *, bias: bool = True) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, width, bias), nn.Linear(width, 3, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(x).relu())


def cut_mine() -> Mine:
    channels = pt.ContinuousSparsification(target=0.5, group="channel")
    plan = pt.compress(model := Mine(16, bias=False), channels, steps=1, example=torch.randn(2, 4))
    plan.finalize()
    return model


def test_a_zoo_network_without_some_channels(hub: Hub) -> None:
    model = zoo.build("digits-cnn", width=4)
    methods = (pt.ContinuousSparsification(target=0.5, group="channel"), pt.SMOL(target_bits=4.0))
    small = pt.compress(model, *methods, steps=1, example=torch.randn(2, 1, 8, 8)).finalize().eval()
    address = push_to_hub(small, NAME, accuracy=0.875, card="Reads digits.")
    assert address.startswith("https://hub/me/small")
    again, x = hub.back(), torch.randn(2, 1, 8, 8)
    assert torch.equal(again(x), small(x))
    assert [p.shape for p in again.parameters()] == [p.shape for p in small.parameters()]
    assert not hub.file("config.json").exists()
    card = ModelCard.load(hub.file("README.md"))
    assert card.data.library_name == "paretorch"
    found = pt.report(small, latency=False)
    for said in ("# small", "Reads digits.", "87.50%", f"{found.bits:.2f} without", f"{found.sparsity:.2%} of these"):
        assert said in card.text
    size = re.search(r"\(([\d,]+) bytes\)", card.text)
    assert size is not None
    # The summary is in the file, and not in what is reported.
    assert 0 <= hub.file("model.pare").stat().st_size - int(size[1].replace(",", "")) < 100
    assert f'from_pretrained("{NAME}")' in card.text


def test_a_model_of_transformers_without_some_channels(hub: Hub) -> None:
    small = cut_bert()
    assert small.bert.encoder.layer[0].intermediate.dense.out_features < 32
    push_to_hub(small, NAME)
    again = hub.back()
    assert type(again) is transformers.BertForMaskedLM
    assert not again.training
    assert torch.equal(again(TOKENS).logits, small(TOKENS).logits)
    assert again.cls.predictions.decoder.weight is again.bert.embeddings.word_embeddings.weight
    assert pt.report(again, latency=False).bits == pytest.approx(pt.report(small, latency=False).bits)
    other = hub.back(bert())
    assert torch.equal(other.eval()(TOKENS).logits, small(TOKENS).logits)


def test_a_model_of_transformers_in_its_dtype(hub: Hub) -> None:
    small = pt.compress(bert().to(torch.bfloat16), pt.SMOL(target_bits=4.0), steps=1).finalize().eval()
    push_to_hub(small, NAME)
    again = hub.back()
    assert again.dtype == torch.bfloat16
    assert torch.equal(again(TOKENS).logits, small(TOKENS).logits)


def test_transformers_own_way_for_whole_shapes(tmp_path: Path) -> None:
    small = (
        pt.compress(bert(), pt.ContinuousSparsification(target=0.5), pt.SMOL(target_bits=4.0), steps=1)
        .finalize()
        .eval()
    )
    small.save_pretrained(tmp_path)
    again = transformers.BertForMaskedLM.from_pretrained(tmp_path).eval()
    assert torch.equal(again(TOKENS).logits, small(TOKENS).logits)


def test_a_class_with_the_mixin(hub: Hub, tmp_path: Path) -> None:
    small, x = cut_mine(), torch.randn(2, 4)
    assert small.fc1.out_features < 16
    small.push_to_hub(NAME, model_card_kwargs={"accuracy": 0.5})
    assert json.loads(hub.file("config.json").read_text()) == {"width": 16, "bias": False}
    assert "50.00%" in hub.file("README.md").read_text()
    assert 'Mine.from_pretrained("me/small")' in hub.file("README.md").read_text()
    again = Mine.from_pretrained(NAME, cache_dir=hub.cache, local_files_only=True)
    assert type(again) is Mine
    assert not again.training
    assert torch.equal(again(x), small(x))
    small.save_pretrained(tmp_path / "folder")
    assert torch.equal(Mine.from_pretrained(tmp_path / "folder")(x), small(x))


def test_a_network_that_must_be_given(hub: Hub, tmp_path: Path) -> None:
    small, x = nn.Sequential(nn.Linear(4, 3)), torch.randn(2, 4)
    save_pretrained(small, tmp_path / "folder")
    assert "into=your_network" in (tmp_path / "folder" / "README.md").read_text()
    with pytest.raises(ArtefactError, match=r"names no zoo network; .*into=model"):
        from_pretrained(tmp_path / "folder")
    again = from_pretrained(tmp_path / "folder", nn.Sequential(nn.Linear(4, 3)))
    assert torch.equal(again(x), small(x))


def test_what_is_not_there(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"me/small is no folder here, and the hub cannot be reached, or has no model\.pare"
    ):
        hub.back()
    with pytest.raises(ConfigError, match=r"has no model\.pare: give a folder"):
        from_pretrained(tmp_path)
    with pytest.raises(
        ConfigError, match=r"a b c is no folder here, and the hub does not give its model\.pare: Repo id must"
    ):
        from_pretrained("a b c")
    searching = Mine()
    pt.compress(searching, pt.SMOL(target_bits=4.0), steps=1)
    with pytest.raises(ConfigError, match=r"still being compressed: plan\.finalize\(\) first"):
        push_to_hub(searching, NAME)
    assert hub.calls == []
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file cannot be a folder"):
        save_pretrained(nn.Linear(2, 2), tmp_path / "file")


@pytest.mark.parametrize("text", ["{", "[1]", '{"model_type": "bert", "architectures": ["os.system"]}'])
def test_a_forged_configuration(text: str, hub: Hub) -> None:
    push_to_hub(bert().eval(), NAME)
    hub.file("config.json").write_text(text)
    with pytest.raises(ArtefactError, match=r"config\.json .* into="):
        hub.back()
