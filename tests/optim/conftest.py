"""On a CPU both implementations are tested: `fused=True` is the compiled loop, and the default the one without a compiler."""

from __future__ import annotations

import pytest

from paretorch.optim import base as _base
from paretorch.optim.kernels import modes as _modes


@pytest.fixture(autouse=True)
def _pieces_by_default(monkeypatch):
    def choose(group, param, name):
        mode = _modes.choose_mode(group, param, name)
        return "pieces" if mode == "compiled" and not group["fused"] else mode

    monkeypatch.setattr(_base, "choose_mode", choose)
