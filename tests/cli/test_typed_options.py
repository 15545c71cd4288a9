"""Errors name what was typed: the option of the command line, not the field that it sets."""

import sys

import pytest
from typer.testing import CliRunner

from paretorch.cli.app import app


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sparsity", "95"], "pare: --sparsity 95: give the share of weights to drop"),
        (["--sparsity=-1"], "pare: --sparsity -1: give the share of weights to drop"),
        (["--bits", "99"], "pare: --bits 99: give the average bits"),
        (["--budget", "0"], "pare: --budget 0: give the bytes of the file"),
        (["--budget", "0.2kB", "--epochs", "1"], "pare: --budget 0.2kB, 200 bytes: "),
        (["--set", "sparsity_options.target=7", "--pruning", "gmp"], "pare: target=7: give the share"),
    ],
)
def test_the_option_is_named(words: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["train", "--network", "digits-cnn", "--data", "digits", *words]
    monkeypatch.setattr(sys, "argv", ["pare", *words])
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2, done.stderr
    assert done.stderr.startswith(said), done.stderr
    assert done.stderr.count("\n") == 1
