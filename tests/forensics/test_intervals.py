"""Sets of time, checked against the set of their points."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from forensics.diagnose.intervals import Span, common, covered, less, overlaps, union

SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda s: (s[0], s[0] + s[1])), max_size=8)


def points(spans: list[Span]) -> set[int]:
    """The unit steps that the spans cover."""
    return {t for start, end in spans for t in range(start, end)}


@given(SPANS, SPANS)
def test_union_common_and_less_are_those_of_the_points(a: list[Span], b: list[Span]) -> None:
    """And what comes out is in order, without overlaps."""
    for found, expected in (
        (union(a), points(a)),
        (common(union(a), union(b)), points(a) & points(b)),
        (less(union(a), union(b)), points(a) - points(b)),
    ):
        assert points(found) == expected
        assert all(x[1] <= y[0] for x, y in pairwise(found))


@given(SPANS, st.lists(st.tuples(st.integers(-5, 60), st.integers(0, 30)), min_size=1, max_size=6))
def test_the_overlap_of_a_wait_is_counted_in_points(spans: list[Span], waits: list[tuple[int, int]]) -> None:
    """Of many waits at once."""
    starts = np.array([start for start, _ in waits], dtype=np.int64)
    ends = starts + np.array([length for _, length in waits], dtype=np.int64)
    expected = [len(points(spans) & set(range(a, b))) for a, b in zip(starts, ends, strict=True)]
    assert overlaps(union(spans), starts, ends).tolist() == expected


def test_intervals_that_overlap_are_counted_each() -> None:
    """Two that hold a moment make two of it."""
    until = covered(np.array([0, 5]), np.array([10, 15]))
    assert until(np.array([0, 5, 10, 20])).tolist() == [0.0, 5.0, 15.0, 20.0]
