"""Edits as JSON: what is written is read back, and impossible values raise."""

import copy
import json
import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from paretorch.edits import Edit, KeepChannels, QuantizeActivation, Scale, Share, edits_of, read_edits, write_edits
from paretorch.errors import ArtefactError

NAMES = st.text(min_size=1, max_size=8)


@st.composite
def keep_channels(draw: st.DrawFn) -> dict[str, Any]:
    size = draw(st.integers(1, 70))
    bits = draw(st.integers(0, 2**size - 2))
    out = draw(st.lists(NAMES, max_size=3))
    inputs = draw(st.lists(NAMES, min_size=0 if out else 1, max_size=3))
    digits = draw(st.sampled_from([f"{bits:x}", f"{bits:X}"]))
    return {"kind": "keep_channels", "keep": digits, "size": size, "out": out, "in": inputs}


@st.composite
def share(draw: st.DrawFn) -> dict[str, Any]:
    weights = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    count = draw(st.integers(1, len(weights)))
    one = st.lists(st.integers(0, count - 1), min_size=1, max_size=count)
    uses = draw(st.lists(one, min_size=len(weights), max_size=len(weights)))
    bank = f"shared_{draw(st.integers(0, 10**6 - 1))}"
    return {"kind": "share", "bank": bank, "count": count, "weights": weights, "uses": uses}


SCALE = st.fixed_dictionaries({"kind": st.just("scale"), "weight": NAMES, "exponent": st.integers(-1100, 1100)})
QUANTIZE = st.fixed_dictionaries(
    {
        "kind": st.just("quantize_activation"),
        "modules": st.lists(NAMES, min_size=1, max_size=3),
        "grid": st.lists(st.integers(1, 6), max_size=8),
    }
)
OBJECTS = st.lists(st.one_of(SCALE, keep_channels(), QUANTIZE, share()), max_size=4)


@given(objects=OBJECTS)
def test_edits_are_written_as_they_were_read(objects: list[dict[str, Any]]) -> None:
    edits = read_edits(objects)
    assert write_edits(edits) == objects
    assert read_edits(json.loads(json.dumps(write_edits(edits)))) == edits
    assert read_edits(edits) == edits
    assert copy.deepcopy(edits) == pickle.loads(pickle.dumps(edits)) == edits
    assert len({*edits, *read_edits(objects)}) == len(set(edits))


def test_each_kind_is_written_as_documented() -> None:
    for edit, data in [
        (Scale("w", -3), {"kind": "scale", "weight": "w", "exponent": -3}),
        (
            KeepChannels("0b", 8, outputs=("a", "b"), inputs=("c",)),
            {"kind": "keep_channels", "keep": "0b", "size": 8, "out": ["a", "b"], "in": ["c"]},
        ),
        (
            QuantizeActivation(("a", "b"), (4, 1)),
            {"kind": "quantize_activation", "modules": ["a", "b"], "grid": [4, 1]},
        ),
        (
            Share("shared_0", 2, ("a", "b"), ((0,), (0, 1))),
            {"kind": "share", "bank": "shared_0", "count": 2, "weights": ["a", "b"], "uses": [[0], [0, 1]]},
        ),
    ]:
        assert edit.to_json() == data
        assert type(edit).from_json(data) == edit
        with pytest.raises(FrozenInstanceError):
            edit.kind = "another"  # type: ignore[misc]


SOUND: list[dict[str, Any]] = [
    {"kind": "scale", "weight": "w", "exponent": 1},
    {"kind": "keep_channels", "keep": "b", "size": 4, "out": ["a"], "in": []},
    {"kind": "quantize_activation", "modules": ["a"], "grid": [4]},
    {"kind": "share", "bank": "shared_0", "count": 1, "weights": ["a", "b"], "uses": [[0], [0]]},
]


@pytest.mark.parametrize("data", SOUND, ids=lambda data: data["kind"])
@pytest.mark.parametrize(
    "damage", ["field missing", "field added", "null", "float", "bool", "tuple", "kind of another"]
)
def test_fields_are_exact(data: dict[str, Any], damage: str) -> None:
    for name in data:
        if name == "kind":
            continue
        wrong = dict(data)
        if damage == "field missing":
            del wrong[name]
        elif damage == "field added":
            wrong[f"{name}s"] = wrong[name]
        elif damage == "kind of another":
            wrong["kind"] = "scale" if data["kind"] != "scale" else "share"
        else:
            wrong[name] = {"null": None, "float": 1.0, "bool": True, "tuple": ("a",)}[damage]
        with pytest.raises(ArtefactError, match="needs exactly"):
            read_edits([wrong])


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("scale", {"exponent": 1101}),
        ("scale", {"exponent": -(10**30)}),
        ("keep_channels", {"keep": ""}),
        ("keep_channels", {"keep": "g"}),
        ("keep_channels", {"keep": "-1"}),
        ("keep_channels", {"keep": "0x1"}),
        ("keep_channels", {"keep": "f"}),
        ("keep_channels", {"keep": "111"}),
        ("keep_channels", {"size": 0}),
        ("keep_channels", {"size": -4}),
        ("keep_channels", {"size": 2**20 + 1}),
        ("keep_channels", {"out": []}),
        ("keep_channels", {"out": [1]}),
        ("keep_channels", {"in": [None]}),
        ("quantize_activation", {"modules": []}),
        ("quantize_activation", {"modules": [""]}),
        ("quantize_activation", {"grid": [0]}),
        ("quantize_activation", {"grid": [-1]}),
        ("quantize_activation", {"grid": [1.0]}),
        ("quantize_activation", {"grid": [2**22 + 1]}),
        ("quantize_activation", {"grid": [2**11, 2**12]}),
        ("quantize_activation", {"grid": [1] * 9}),
        ("share", {"bank": "weight"}),
        ("share", {"bank": "shared_0 "}),
        ("share", {"bank": "shared_1234567"}),
        ("share", {"count": 0}),
        ("share", {"count": 3}),
        ("share", {"weights": ["a"]}),
        ("share", {"weights": ["a", "a"]}),
        ("share", {"weights": ["a", 1]}),
        ("share", {"uses": [[0], []]}),
        ("share", {"uses": [[0], [1]]}),
        ("share", {"uses": [[0], [-1]]}),
        ("share", {"uses": [[0], [False]]}),
        ("share", {"uses": [[0], "0"]}),
    ],
)
def test_impossible_values_raise(kind: str, change: dict[str, Any]) -> None:
    (sound,) = [data for data in SOUND if data["kind"] == kind]
    assert len(read_edits([sound])) == 1
    with pytest.raises(ArtefactError, match=kind):
        read_edits([sound, {**sound, **change}])


@pytest.mark.parametrize(
    "edits", [None, 3, "scale", b"scale" * 2, {"kind": "scale"}, [None], ["scale"], [[]], [{}], [{"kind": ["scale"]}]]
)
def test_anything_but_a_list_of_edits_raises(edits: object) -> None:
    with pytest.raises(ArtefactError, match=r"must be a list of edits|Unknown structural edit"):
        read_edits(edits)


def test_unknown_kinds_are_named_in_short_with_the_known_kinds() -> None:
    with pytest.raises(
        ArtefactError, match="'exec'; this version knows: scale, keep_channels, quantize_activation, share"
    ):
        read_edits([{"kind": "exec"}])
    with pytest.raises(ArtefactError) as refused:
        read_edits([{"kind": "k" * 10_000}])
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    "edit",
    [
        Scale("w", 10**30),
        Scale(3, 1),  # type: ignore[arg-type]
        KeepChannels("f", 4, ("a",)),
        KeepChannels("b", 4),
        QuantizeActivation((), (1,)),
        QuantizeActivation(("a",), (2**30,)),
        Share("shared_0", 1, ("a",), ((1,),)),
    ],
)
def test_typed_edits_are_checked_as_files_are(edit: Edit) -> None:
    with pytest.raises(ArtefactError):
        write_edits([edit])


def test_a_module_may_list_typed_edits_or_json() -> None:
    module = nn.Linear(2, 2)
    assert edits_of(module) == []
    module.paretorch_edits = [{"kind": "scale", "weight": "weight", "exponent": 2}, Scale("bias", 1)]  # type: ignore[assignment]
    assert edits_of(module) == [Scale("weight", 2), Scale("bias", 1)]
    module.paretorch_edits = ["scale"]  # type: ignore[assignment]
    with pytest.raises(ArtefactError):
        edits_of(module)
