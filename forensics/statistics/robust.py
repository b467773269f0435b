"""Numbers that one outlier cannot move, and the one definition of a quantile that all of this package uses."""

from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[Any]
"""Integers or floats."""

TO_SD = 1 / 0.6744897501960817
"""The standard deviation of a normal distribution in units of its median absolute deviation."""


def quantile_rank(count: int, p: float) -> int:
    """The rank (from 0) of the p-quantile among `count` values: the smallest value with a share of p at or below it.

    No interpolation: a quantile is a latency that some request had.
    """
    if count < 1 or not 0 <= p <= 1:
        raise ValueError(f"the {p}-quantile of {count} values; there must be a value, and p between 0 and 1")
    # 0.07 * 100 is 7.000000000000001: what is off by rounding alone must not cost a rank.
    return max(ceil(p * count - 1e-9) - 1, 0)


def quantile(values: Numbers, p: float) -> float:
    """The p-quantile, one of the values."""
    rank = quantile_rank(len(values), p)
    return float(np.partition(values, rank)[rank])


def weighted_quantile(values: Numbers, weights: Floats, p: float) -> float:
    """The smallest value with a share of at least p of the weight at or below it. Weights are >= 0, not all 0."""
    order = np.argsort(values, kind="stable")
    heaped = np.cumsum(weights[order])
    if not len(values) or not heaped[-1] > 0:
        raise ValueError("a weighted quantile needs a weight above 0")
    rank = int(np.searchsorted(heaped, p * heaped[-1] * (1 - 1e-12), side="left"))
    return float(values[order[min(rank, len(values) - 1)]])


def spread(values: Numbers) -> float:
    """The standard deviation by the median absolute deviation: what half of the values say about a normal one."""
    return float(np.median(np.abs(values - np.median(values)))) * TO_SD if len(values) else 0.0


def noise(series: Floats) -> tuple[float, float]:
    """Standard deviation and lag-1 correlation of the noise of a series with rare level shifts.

    By differences, which a shift touches once: for noise of the form x_t = r x_{t-1} + e_t the differences over one
    step have variance 2 s^2 (1 - r), over two steps 2 s^2 (1 - r^2), so their ratio is 1 + r. r is held within
    0 and 0.9.
    """
    if len(series) < 4:
        return 0.0, 0.0
    one, two = (spread(series[lag:] - series[:-lag]) for lag in (1, 2))
    if one == 0:
        # More than half are as their neighbours (seconds without an event, say): the others are the noise.
        return float(np.std(np.diff(series))) / 2**0.5, 0.0
    r = min(max((two / one) ** 2 - 1, 0.0), 0.9)
    return one / (2 * (1 - r)) ** 0.5, r


def buckets(values: Numbers, count: int) -> Ints:
    """Codes 0 .. count - 1 by quantile: about equally many values each, equal values in the same bucket."""
    ordered = np.sort(values)
    edges = ordered[[quantile_rank(len(ordered), i / count) for i in range(1, count)]] if len(ordered) else ordered
    return np.searchsorted(edges, values, side="left").astype(np.int64)
