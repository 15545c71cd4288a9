"""Section 6.5.1 in small: where Adam drifts away, the methods of the thesis stay."""

from __future__ import annotations

import numpy as np
import pytest

from paretorch.errors import ConfigError
from tests.workflows.tuning.test_grid_benchmark import load

synthetic = load("optimizer_synthetic")


def test_adam_leaves_and_the_others_come() -> None:
    curves = synthetic.run(steps=10_000, seeds=range(40), points=5)
    assert set(curves) == set(synthetic.METHODS)
    distance = {name: float(np.abs(curve.w[-1] - synthetic.OPTIMUM).mean()) for name, curve in curves.items()}
    assert distance.pop("Adam") > 0.3
    assert max(distance.values()) < 0.25, distance
    assert curves["Adam"].gradient[-1].mean() > curves["Delayed Adam"].gradient[-1].mean()


def test_shapes_and_repeatability() -> None:
    first, second = (synthetic.run(300, seeds=[3, 4], methods=["Delayed Adam"], points=5) for _ in range(2))
    curve, again = first["Delayed Adam"], second["Delayed Adam"]
    assert curve.steps[-1] == 300
    assert curve.gradient.shape == curve.w.shape == (len(curve.steps), 2)
    assert np.array_equal(curve.gradient, again.gradient)
    assert ((curve.w >= 0) & (curve.w <= 1)).all()


def test_unknown_method() -> None:
    with pytest.raises(ConfigError, match="Unknown methods"):
        synthetic.run(10, methods=["SGD"])
