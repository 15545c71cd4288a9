"""Compiling each variant of the loop for CPUs takes seconds; here it runs as it is written, except where a test asks."""

from __future__ import annotations

import pytest

from paretorch.optim import _compiled


@pytest.fixture(autouse=True)
def _uncompiled(monkeypatch, request):
    if "compiled_for_real" not in request.fixturenames:
        monkeypatch.setattr(_compiled, "_variant", lambda variant: _compiled._loop)


@pytest.fixture
def compiled_for_real() -> None:
    """Let torch.compile do its work."""
