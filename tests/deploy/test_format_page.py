"""docs/format.md tells the layout of the file as it is."""

import hashlib
import json
import zlib
from pathlib import Path

import torch
from torch import nn

from paretorch.deploy import save
from paretorch.deploy.codec.container import VERSION

_PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text()


def test_the_layout_is_as_told(tmp_path: Path) -> None:
    network = nn.Linear(300, 200)
    nn.init.constant_(network.weight, 0.25)
    save(network, tmp_path / "x.pare", summary={"accuracy": 0.5})
    data = (tmp_path / "x.pare").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, blob = json.loads(data[8 : 8 + length]), data[8 + length :]
    assert header["__metadata__"] == {"pare": str(VERSION)}
    assert header["pare"] == {"dtype": "U8", "shape": [len(blob)], "data_offsets": [0, len(blob)]}
    assert f'{{"pare": "{VERSION}"}}' in _PAGE
    assert f"writes {VERSION}, and reads 1 to {VERSION}" in _PAGE
    assert blob[:16] != hashlib.sha256(blob[16:]).digest()[:16], "the version is in it"
    words = int.from_bytes(blob[16:20], "little")
    index = zlib.decompressobj(-15).decompress(blob[20 + 4 * words + 1 :])
    assert b'"summary":{"accuracy":0.5}' in index
    assert torch.equal(network.weight, torch.full_like(network.weight, 0.25))


def test_the_limits_are_those_of_the_code() -> None:
    from paretorch.deploy.codec import container as blob
    from paretorch.support import checked_files
    from paretorch.zoo.data import safe_pickle
    from tests.fuzz import run

    security = (Path(__file__).parents[2] / "SECURITY.md").read_text()
    assert (blob._MAX_NUMBERS, blob._MAX_DIMS, blob._INDEX_LIMIT, blob._INDEX_GROWTH) == (1 << 40, 16, 1 << 24, 64)
    assert f"{checked_files._MOST_VALUES:,} values" in security
    assert f"{safe_pickle.GROWTH} bytes per byte" in security
    assert f"{run.MEGABYTES:,} MiB" in security
    assert f"{run.SECONDS} s per input" in security
