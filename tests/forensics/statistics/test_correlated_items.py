"""How much of a series is said twice."""

import numpy as np
import pytest

from forensics.statistics.correlation import correlated_items


@pytest.mark.parametrize("r", [0.0, 0.5, 0.9])
def test_correlated_items_are_counted(r: float) -> None:
    """Of a series x_t = r x_{t-1} + e_t it is known: (1 + r) / (1 - r)."""
    rng = np.random.default_rng(1)
    series = np.empty(50_000)
    series[0] = 0
    for i, shock in enumerate(rng.normal(0, 1, 49_999), start=1):
        series[i] = r * series[i - 1] + shock
    assert correlated_items(series) == pytest.approx((1 + r) / (1 - r), rel=0.15)


@pytest.mark.parametrize("series", [[], [1.0, 2.0], [3.0] * 50])
def test_too_little_to_tell_counts_as_independent(series: list[float]) -> None:
    """None, a few, or all alike: each speaks for itself."""
    assert correlated_items(np.array(series)) == 1
