"""On a CPU both implementations are tested: `fused=True` is the compiled loop, and the default the one without a compiler."""

from __future__ import annotations

import pytest

from paretorch.optim import base
from paretorch.optim.kernels import choose_implementation


@pytest.fixture(autouse=True)
def _chunked_by_default(monkeypatch):
    def choose(group, param, name):
        implementation = choose_implementation(group, param, name)
        return "chunked" if implementation == "compiled" and not group["fused"] else implementation

    monkeypatch.setattr(base, "choose_implementation", choose)
