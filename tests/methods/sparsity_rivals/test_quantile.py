"""The cut below which a share of the weights lies: sorted, digit by digit, and counted by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paretorch.methods.sparsity.pruning import by_digits, by_sorting, quantile

_scores = st.lists(st.floats(0.0, 1e4, width=32, allow_subnormal=False), min_size=1, max_size=40, unique=True)


@given(_scores, st.floats(0.0, 1.0), st.data())
@settings(max_examples=60, deadline=None)
def test_both_ways_agree(scores: list[float], share: float, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=len(scores), max_size=len(scores)))
    given_ = torch.tensor(scores), torch.tensor(sizes, dtype=torch.float32), torch.tensor(share)
    assert float(by_digits(*given_)) == float(by_sorting(*given_))


@pytest.mark.parametrize("find", [by_sorting, by_digits])
def test_the_share_lies_below(find: object) -> None:
    rng = np.random.default_rng(0)
    values = torch.from_numpy(rng.exponential(0.1, 5000).astype("float32"))
    for share in (0.001, 0.5, 0.955, 0.9999):
        cut = find(values, torch.ones(5000), torch.tensor(share))  # type: ignore[operator]
        assert abs(int((values < cut).sum()) - 5000 * share) <= 0.5


def test_a_compiled_search_is_the_eager_one() -> None:
    torch.manual_seed(0)
    values, sizes, share = torch.rand(3000) ** 4, torch.randint(1, 5, (3000,)).float(), torch.tensor(0.9)
    compiled = torch.compile(by_digits, dynamic=False)
    assert float(compiled(values, sizes, share)) == float(by_sorting(values, sizes, share))


def test_nothing_goes_where_nothing_shall() -> None:
    assert float(quantile(torch.tensor([0.5, 0.2]), torch.ones(2), torch.tensor(0.0))) == 0.0


def test_equal_values_stay_together() -> None:
    values = torch.tensor([0.1, 0.3, 0.3, 0.3, 0.9])
    assert float(by_digits(values, torch.ones(5), torch.tensor(0.4))) == pytest.approx(0.2)
    assert float(by_digits(values, torch.ones(5), torch.tensor(0.6))) == pytest.approx(0.6)
