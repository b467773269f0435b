"""How many times as probable is slow here as there, and how sure is that, when slow requests come in clumps?"""

from dataclasses import dataclass
from math import erfc, inf, log

import numpy as np

from forensics.statistics.robust import Ints

SLOW_MIN = 5
"""A side with fewer slow requests is not compared."""
CLUMPS_MIN = 3
"""Nor one whose slow requests are in fewer clusters: one incident is no pattern."""


@dataclass(frozen=True, slots=True)
class Side:
    """Some requests: how many, how many of them slow, and (where there are clusters) both of each cluster."""

    requests: int
    slow: int
    requests_of: Ints | None = None
    slow_of: Ints | None = None

    def __sub__(self, other: "Side") -> "Side":
        """These requests without some of them."""
        if self.requests_of is None or self.slow_of is None or other.requests_of is None or other.slow_of is None:
            return Side(self.requests - other.requests, self.slow - other.slow)
        return Side(
            self.requests - other.requests,
            self.slow - other.slow,
            self.requests_of - other.requests_of,
            self.slow_of - other.slow_of,
        )


@dataclass(frozen=True, slots=True)
class Risk:
    """A ratio of probabilities, the standard error of its logarithm, and its p-value, two-sided."""

    ratio: float
    error: float
    p_value: float


def compare(mine: Side, others: Side) -> Risk | None:
    """The risk of one side in units of the other's; None where too little is known of either."""
    a, c = float(mine.slow), float(others.slow)
    if a < SLOW_MIN or others.requests == 0:
        return None
    c = max(c, 0.5)  # half a request where there is none: a ratio to 0 has no interval
    ratio = (a / mine.requests) / (c / others.requests)
    variance, freedom = 1 / a - 1 / mine.requests + 1 / c - 1 / others.requests, inf
    if mine.requests_of is not None and mine.slow_of is not None:
        assert others.requests_of is not None and others.slow_of is not None
        if np.count_nonzero(mine.slow_of) < CLUMPS_MIN:
            return None
        # What each cluster moves the logarithm of the ratio by, to first order.
        moves = (mine.slow_of - a / mine.requests * mine.requests_of) / a
        moves = moves - (others.slow_of - c / others.requests * others.requests_of) / c
        variance = max(variance, float(moves @ moves))
        # A few clusters know little of how much clusters differ.
        freedom = max(int(np.count_nonzero(mine.slow_of + others.slow_of)) - 1, 1)
    z = abs(log(ratio)) / variance**0.5
    # Student's t as a normal one (Abramowitz and Stegun, 26.7.8).
    z *= (1 - 1 / (4 * freedom)) / (1 + z * z / (2 * freedom)) ** 0.5
    return Risk(ratio, variance**0.5, erfc(z / 2**0.5))
