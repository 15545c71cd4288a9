"""Every file that is read, with flipped bits, cut, and with what no writer of ours writes: read right, or refused in one line."""

import random
from pathlib import Path

import pytest

from paretorch.errors import ConfigError, PareError
from paretorch.training.recipe_values import read_config, recipe_from
from tests.fuzz.run import mutated
from tests.fuzz.targets import TARGETS, seeds


@pytest.mark.parametrize("name", TARGETS)
def test_every_bit_of_every_byte_in_turn(name: str) -> None:
    """One bit of each byte, or of 400 of them, is flipped: what is read is what was written, or refused."""
    chance = random.Random(name)
    for seed in seeds(name):
        places = range(len(seed)) if len(seed) <= 400 else chance.sample(range(len(seed)), 400)
        for place in places:
            data = bytearray(seed)
            data[place] ^= 1 << chance.randrange(8)
            TARGETS[name](bytes(data))


@pytest.mark.parametrize("name", TARGETS)
def test_a_file_that_was_cut(name: str) -> None:
    for seed in seeds(name):
        for length in range(0, len(seed), max(1, len(seed) // 100)):
            TARGETS[name](seed[:length])


@pytest.mark.parametrize("name", TARGETS)
def test_mutations(name: str) -> None:
    chance, corpus = random.Random(name), seeds(name)
    for _ in range(300):
        TARGETS[name](mutated(chance.choice(corpus), chance))


def test_line_breaks_and_codes_of_terminals_are_shown_and_not_sent(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('"optimi\\nzer\\u001b[2J" = 1\n')
    with pytest.raises(ConfigError) as caught:
        recipe_from(read_config(path))
    assert str(caught.value).isprintable()
    assert r"optimi\nzer\x1b[2J" in str(caught.value)
    assert str(PareError("plain")) == "plain"
