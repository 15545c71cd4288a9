"""The packed form gives every value bit for bit, and its products are those of the dense weight."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from paretorch.deploy.codec.integers import Integers
from paretorch.deploy.packed import kernel
from paretorch.deploy.packed.few_bits import FewBits, pack, unpack_rows
from paretorch.deploy.packed.find import pack_values
from paretorch.deploy.packed.kernel import Product
from paretorch.support.c_code import find_compiler
from tests.deploy.packed.weights import KINDS, random_integers

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="needs a C compiler")
SHAPES = [(64, 64, None), (33, 50, None), (17, 96, 32), (40, 100, 48), (1, 1, None), (300, 260, 128)]


def packed(weight: Integers) -> FewBits:
    found = pack(weight)
    assert found is not None
    return found


def dense(weight: Integers) -> Tensor:
    return torch.from_numpy(weight.dense())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("outputs", "inputs", "group"), SHAPES)
def test_every_value_is_kept(kind: str, outputs: int, inputs: int, group: int | None) -> None:
    weight = random_integers(kind, outputs, inputs, group)
    own = packed(weight)
    assert torch.equal(unpack_rows(own, own.places), dense(weight))
    assert torch.equal(Product(own).rows(own.places), dense(weight))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 13])
def test_products_are_those_of_the_dense_weight(kind: str, count: int) -> None:
    for outputs, inputs, group in SHAPES:
        weight = random_integers(kind, outputs, inputs, group, seed=count)
        x, bias = torch.randn(count, inputs), torch.randn(outputs)
        wanted = torch.nn.functional.linear(x.double(), dense(weight).double(), bias.double()).float()
        atol = 1e-6 * float(wanted.abs().max()) if count else 0.0
        torch.testing.assert_close(Product(packed(weight), bias)(x), wanted, rtol=0, atol=atol)


@pytest.mark.parametrize("kind", ["2 bits odd", "mixed"])
def test_without_a_compiler_torch_computes_the_same(kind: str, monkeypatch) -> None:
    weight = random_integers(kind, 40, 100, 48)
    x, bias = torch.randn(3, 100), torch.randn(40)
    fast = Product(packed(weight), bias)(x)
    monkeypatch.setattr(kernel, "library", lambda: None)
    slow = Product(packed(weight), bias)
    torch.testing.assert_close(slow(x), fast, rtol=0, atol=1e-6 * float(fast.abs().max()))
    assert torch.equal(slow.rows(slow.weight.places), dense(weight))


def test_a_missing_compiler_is_named_once() -> None:
    code = (
        "import warnings, torch\n"
        "from paretorch.deploy.packed import FewBitLinear\n"
        "from paretorch.deploy.packed.find import pack_values\n"
        "warnings.simplefilter('always')\n"
        "layer = FewBitLinear(pack_values(torch.ones(16, 16)))\n"
        "assert torch.equal(layer(torch.ones(2, 16)), torch.full((2, 16), 16.0))\n"
        "FewBitLinear(pack_values(torch.ones(16, 16)))(torch.ones(1, 16))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "CC": "no-such"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("No C compiler works here") == 1


@needs_compiler
@pytest.mark.parametrize("definitions", [(), ("OWN_THREADS",)])
def test_any_number_of_threads_gives_the_same(definitions: tuple[str, ...], monkeypatch) -> None:
    built = kernel.build(definitions)
    monkeypatch.setattr(kernel, "library", lambda: built)
    monkeypatch.setattr(kernel, "_PER_THREAD", 1)
    product, x = Product(packed(random_integers("mixed", 200, 64))), torch.randn(5, 64)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(product(x))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_each_row_takes_the_fewest_bits() -> None:
    numbers = np.ones((80, 64), dtype=np.int16)
    numbers[:16, 0], numbers[16:32, 0], numbers[32:48] = 101, -8, 0  # 8 bits, 4 bits, none; the others 2
    assert packed(Integers(numbers, np.ones((80, 1), np.float32), 64)).blocks == (1, 1, 2, 1)


def test_two_bits_take_two_bits() -> None:
    own = packed(random_integers("2 bits odd", 1024, 1024))
    assert own.bytes < 1.05 * 1024 * 1024 / 4


@pytest.mark.parametrize(
    "weight",
    [
        Integers(
            np.full((4, 64), 999, dtype=np.int16) + np.arange(64, dtype=np.int16), np.ones((4, 1), np.float32), 64
        ),
        random_integers("4 bits", 4, 60, 10),
        Integers(np.zeros((0, 5), dtype=np.int8), np.ones((0, 1), np.float32), 5),
    ],
    ids=["11 bits", "groups of 10", "no outputs"],
)
def test_what_has_no_packed_form(weight: Integers) -> None:
    assert pack(weight) is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [None, 32])
def test_values_in_memory_are_recognised(kind: str, group: int | None) -> None:
    values = dense(random_integers(kind, 48, 128, group))
    own = pack_values(values)
    assert own is not None
    assert torch.equal(unpack_rows(own, own.places), values)


@pytest.mark.parametrize("values", [torch.randn(20, 64), torch.full((4, 64), torch.inf), torch.ones(4, 64).double()])
def test_other_values_are_not(values: Tensor) -> None:
    assert pack_values(values) is None
