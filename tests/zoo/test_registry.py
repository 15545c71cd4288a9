"""Networks by name."""

import copy
import json
import subprocess
import sys
from fnmatch import fnmatch

import pytest
import torch
from torch import nn

from paretorch.errors import ConfigError
from paretorch.zoo import build, names

_LARGE = {"wrn-28-10", "wrn-50-2", "resnet50", "lstm-1000", "transformer"}  # their relatives are tested


def test_a_network_can_be_built_again() -> None:
    first = build("wrn-10-2", classes=7, dropout=0.1)
    assert (first.zoo_name, first.zoo_options) == ("wrn-10-2", {"classes": 7, "dropout": 0.1})
    kept = copy.deepcopy(first)
    again = build(kept.zoo_name, **json.loads(json.dumps(kept.zoo_options)))
    again.load_state_dict(first.state_dict())
    first.eval(), again.eval()
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(first(x), again(x))


def test_unknown_network_lists_close_names() -> None:
    with pytest.raises(ConfigError, match=r"'resnet22'.*resnet20"):
        build("resnet22")
    with pytest.raises(ConfigError, match="digits-cnn"):
        build("??")


@pytest.mark.parametrize("option", ["colour", "depth"])
def test_unknown_option_lists_the_options(option: str) -> None:
    with pytest.raises(ConfigError, match=rf"no option '{option}'.*classes"):
        build("resnet20", **{option: 3})


def test_options_are_json() -> None:
    with pytest.raises(ConfigError, match="plain numbers"):
        build("resnet20", classes=torch.tensor(3))


@pytest.mark.parametrize(
    ("name", "options"), [("lstm-0", {}), ("resnet20", {"classes": "ten"}), ("digits-cnn", {"width": -1})]
)
def test_impossible_sizes(name: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=rf"{name!r} cannot be built with"):
        build(name, **options)


def test_impossible_depths() -> None:
    with pytest.raises(ConfigError, match=r"6n \+ 4"):
        build("wrn-27-10")
    with pytest.raises(ConfigError, match="at least 1"):
        build("wrn-28-0")


@pytest.mark.parametrize("name", names())
def test_every_pattern_left_out_matches_a_weight(name: str) -> None:
    with torch.device("meta"):
        network = build(name)
    layers = [path for path, module in network.named_modules() if list(module.parameters(recurse=False))]
    assert set(network.leave_out) == {"sparsity", "precision", "sharing"}
    for patterns in network.leave_out.values():
        for pattern in patterns:
            assert any(fnmatch(path, pattern) for path in layers), f"{pattern} matches nothing in {name}"


@pytest.mark.parametrize("name", sorted(set(names()) - _LARGE))
def test_weights_are_initialised_alike_from_one_seed(name: str) -> None:
    small = {"width": 8} if name.startswith("vgg") else {}
    states = []
    for _ in range(2):
        torch.manual_seed(0)
        states.append(build(name, **small).state_dict())
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())


def test_nothing_optional_is_imported() -> None:
    code = (
        "import sys, paretorch.zoo as zoo; [zoo.build(n) for n in ('resnet20', 'digits-cnn')]; zoo.data.load('digits');"
        "sys.exit(any(m in sys.modules for m in ('torchvision', 'PIL', 'tokenizers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_leave_out_of_the_recipes() -> None:
    def left(name: str, method: str) -> set[str]:
        with torch.device("meta"):
            network = build(name)
        return {
            path
            for path, module in network.named_modules()
            if isinstance(module, nn.Conv2d | nn.Linear)
            and any(fnmatch(path, pattern) for pattern in network.leave_out[method])
        }

    shortcuts = {"stages.1.0.shortcut.0", "stages.2.0.shortcut.0"}
    assert left("resnet20", "sparsity") == {*shortcuts, "head"}
    assert left("resnet20", "precision") == shortcuts
    assert left("vgg16", "sparsity") == {"head"}
    kept = {f"stages.{stage}.{block}.conv{n}" for stage in range(3) for block in (1, 2, 3) for n in (1, 2)}
    with torch.device("meta"):
        convs = {path for path, m in build("wrn-28-4").named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}
    assert convs - left("wrn-28-4", "sharing") == kept, "six convolutions in each of three groups, chapter 3"
