"""Intervals of time, many at once."""

from collections.abc import Callable, Iterable, Sequence

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


Span = tuple[int, int]
"""From, to."""


def union(spans: Iterable[Span]) -> list[Span]:
    """The same time as spans that neither overlap nor touch, in order."""
    merged: list[Span] = []
    for start, end in sorted(span for span in spans if span[1] > span[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def common(a: Sequence[Span], b: Sequence[Span]) -> list[Span]:
    """The time that is in both; both as `union` gives them."""
    found, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            found.append((start, end))
        if a[i][1] <= b[j][1]:
            i += 1
        else:
            j += 1
    return found


def less(a: Sequence[Span], b: Sequence[Span]) -> list[Span]:
    """The time that is in the first only; both as `union` gives them."""
    left: list[Span] = []
    for start, end in a:
        for other_start, other_end in b:
            if other_end <= start or other_start >= end:
                continue
            if other_start > start:
                left.append((start, other_start))
            start = max(start, other_end)
        if start < end:
            left.append((start, end))
    return left


def overlaps(spans: Sequence[Span], starts: Ints, ends: Ints) -> Ints:
    """How much of each [start, end] lies in the spans, which are as `union` gives them."""
    if not spans:
        return np.zeros(len(starts), dtype=np.int64)
    until = covered(np.array([a for a, _ in spans]), np.array([b for _, b in spans]))
    within: Ints = np.maximum(until(ends) - until(starts), 0).astype(np.int64)
    return within
