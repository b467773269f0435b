"""Intervals of time, many at once."""

from collections.abc import Callable

import numpy as np

from forensics.diagnose.window import Floats, Ints


def covered(starts: Ints, ends: Ints) -> Callable[[Ints], Floats]:
    """How much of the time up to t these intervals cover, those that overlap counted each.

    How many of them hold a moment is a staircase; its integral up to t is the sum of t - start over those begun
    before t, less that of t - end over those ended.
    """
    origin = int(starts.min()) if len(starts) else 0
    edges = [np.sort(x) - origin for x in (starts, ends)]
    # From the first on, the sums of many stamps stay exact enough in floating point.
    sums = [np.concatenate([[0.0], np.cumsum(x.astype(np.float64))]) for x in edges]

    def until(t: Ints) -> Floats:
        since = (t - origin).astype(np.float64)
        counts = [np.searchsorted(x, t - origin, side="right") for x in edges]
        total: Floats = (counts[0] * since - sums[0][counts[0]]) - (counts[1] * since - sums[1][counts[1]])
        return total

    return until
