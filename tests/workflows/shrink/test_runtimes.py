"""`pt.shrink(runtime=)`: rounded to and trained on the values that a runtime stores."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import paretorch as pt
from paretorch.deploy.runtimes import RUNTIMES
from paretorch.deploy.runtimes.read import read_stored
from paretorch.errors import ConfigError
from paretorch.workflows.shrink import shrink_network
from tests.workflows.shrink.networks import images, tokens, trained_convnet, trained_language_model


@pytest.fixture(scope="module")
def convnet() -> nn.Module:
    return trained_convnet()


@pytest.mark.parametrize("runtime", ["onnxruntime-int4", "onnxruntime-int8"])
def test_training_brings_it_nearer_and_keeps_the_values(convnet: nn.Module, runtime: str) -> None:
    found = shrink_network(convnet, images(), runtime=runtime, steps=30, progress="quiet")
    assert found.record["trained_distance"] is not None
    if found.record["trained"]:
        assert found.record["trained_distance"] < found.record["post_trained_distance"]
    for name, one in read_stored(found.model, RUNTIMES[runtime]).items():
        assert one.form is not None, name


def test_second_order_rounding_is_nearer_than_rounding_alone(convnet: nn.Module) -> None:
    import copy

    nearest = pt.compress(copy.deepcopy(convnet), pt.SMOL(), steps=1, runtime="onnxruntime-int4").finalize().eval()
    small = pt.shrink(convnet, images(), runtime="onnxruntime-int4", steps=0)
    batches = [batch if isinstance(batch, torch.Tensor) else batch[0] for batch in images()]
    with torch.no_grad():
        own, plain = (sum(float((model(x) - convnet(x)).square().sum()) for x in batches) for model in (small, nearest))
    assert own < plain


@pytest.mark.filterwarnings("ignore::paretorch.errors.LeftOutWarning")
def test_a_language_model_goes_to_gguf(tmp_path: Path) -> None:
    small = pt.shrink(trained_language_model(), tokens(), runtime="gguf:Q8_0", steps=4)
    path = pt.export(small, tmp_path / "model.gguf", runtime="gguf:Q8_0")
    import gguf

    state = small.state_dict()
    for tensor in gguf.GGUFReader(path).tensors:
        values = np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type)).ravel()
        assert np.array_equal(values, state[tensor.name].numpy().ravel())


def test_it_goes_on_and_another_runtime_is_refused(convnet: nn.Module, tmp_path: Path) -> None:
    options = {"steps": 3, "folder": tmp_path / "run"}
    first = pt.shrink(convnet, images(), runtime="openvino", **options)  # type: ignore[arg-type]
    again = pt.shrink(convnet, images(), runtime="openvino", **options)  # type: ignore[arg-type]
    state = again.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in first.state_dict().items())
    with pytest.raises(ConfigError, match="begun with another runtime"):
        pt.shrink(convnet, images(), runtime="onnxruntime-int8", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, 'give budget=, such as "1/10", or runtime=, such as "gguf:Q4_0", one'),
        ({"budget": "1/10", "runtime": "openvino"}, "not both: the formats of a runtime say"),
        ({"runtime": "coreml"}, "runtime='coreml' is not known"),
    ],
)
def test_what_cannot_work_is_refused(convnet: nn.Module, options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        pt.shrink(convnet, images(), **options)  # type: ignore[arg-type]
