"""Statistics over runs: the exact test, the interval, and how often they err."""

import itertools
import math
import random

import pytest

from forensics.statistics.runs import (
    best_p,
    mean_interval,
    permutation_p,
    runs_needed,
    shift_between,
    student_t,
)


def enumerated_p(a: list[int], b: list[int]) -> float:
    """The permutation p by trying every way to deal out the labels."""
    values = [*a, *b]
    ranks = [sum(v < x for v in values) + (sum(v == x for v in values) + 1) / 2 for x in values]
    expected = len(a) * (len(values) + 1) / 2
    off = abs(sum(ranks[: len(a)]) - expected)
    dealt = [sum(some) for some in itertools.combinations(ranks, len(a))]
    return sum(abs(total - expected) >= off - 1e-9 for total in dealt) / len(dealt)


@pytest.mark.parametrize("seed", range(20))
def test_the_permutation_test_is_exact_with_ties_too(seed: int) -> None:
    """It equals trying all labels, also where runs have equal numbers, as error rates do."""
    rng = random.Random(seed)
    a, b = ([rng.randint(0, 6) for _ in range(rng.randint(1, 5))] for _ in range(2))
    assert permutation_p(a, b) == pytest.approx(enumerated_p(a, b))


def test_few_runs_bound_what_can_be_shown() -> None:
    """Three a side never reach 5 %, however large the difference is; four do."""
    assert [round(best_p(n, n), 3) for n in (1, 2, 3, 4)] == [1.0, 0.333, 0.1, 0.029]
    assert [runs_needed(c) for c in (0.9, 0.95, 0.99)] == [3, 4, 5]
    assert not shift_between([1, 2, 3], [100, 200, 300], confidence=0.95).bounded
    assert shift_between([1, 2, 3, 4], [100, 200, 300, 400], confidence=0.95).shown


def test_the_interval_is_that_of_the_tables() -> None:
    """Eight runs a side leave out 13 differences at either end (Mann and Whitney's table for 5 %, two-sided)."""
    a, b = [float(i) for i in range(8)], [float(8 * i) for i in range(8)]
    differences = sorted(y - x for x in a for y in b)
    shift = shift_between(a, b, confidence=0.95)
    assert (shift.lo, shift.hi) == (differences[13], differences[-14])
    assert shift.estimate == (differences[31] + differences[32]) / 2


def test_one_wild_run_moves_neither_estimate_nor_verdict_far() -> None:
    """A neighbour that wakes up in one run of eight does not decide."""
    a = [10.0, 10.1, 10.2, 10.3, 9.9, 9.8, 10.05, 10.15]
    b = [10.02, 10.12, 10.22, 10.28, 9.92, 9.82, 10.07, 900.0]
    shift = shift_between(a, b, confidence=0.95)
    assert not shift.shown
    assert abs(shift.estimate) < 0.2


@pytest.mark.parametrize("runs", [4, 8, 70])
def test_equal_sides_differ_as_seldom_as_promised(runs: int) -> None:
    """At 95 %, at most one comparison in twenty of a thing with itself shows a difference; beyond 120 runs, about."""
    rng = random.Random(runs)
    tries = 200
    shown = 0
    for _ in range(tries):
        a, b = ([rng.lognormvariate(0, 0.3) for _ in range(runs)] for _ in range(2))
        shown += shift_between(a, b, confidence=0.95).shown
    assert shown / tries <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / tries)


def test_the_interval_holds_the_true_difference_as_often_as_it_says() -> None:
    """Runs that differ by 10 % among themselves, one side 5 % slower: 95 % of 400, less three standard errors."""
    rng = random.Random(1)
    held = 0
    for _ in range(400):
        a, b = ([rng.gauss(by, 0.1) for _ in range(8)] for by in (0, 0.05))
        shift = shift_between(a, b, confidence=0.95)
        held += shift.lo <= 0.05 <= shift.hi
    assert held >= 400 * 0.95 - 3 * math.sqrt(400 * 0.95 * 0.05)


def test_a_difference_as_large_as_two_spreads_is_shown_by_eight_a_side() -> None:
    """What eight runs a side can see: one of 2 standard deviations of the runs in 9 of 10 comparisons."""
    rng = random.Random(2)
    sides = [([rng.gauss(by, 1) for _ in range(8)] for by in (0, 2)) for _ in range(100)]
    assert sum(shift_between(a, b, confidence=0.95).shown for a, b in sides) >= 90


def test_fifty_against_fifty_are_counted_too() -> None:
    """There are 10^29 ways to deal them; the counting is by rank, not by deal. The normal limit is close by then."""
    rng = random.Random(1)
    a, b = ([rng.gauss(by, 1) for _ in range(50)] for by in (0, 0.6))
    ranked = sorted((*a, *b))
    off = abs(sum(ranked.index(v) + 1 for v in a) - 50 * 101 / 2) - 0.5
    assert permutation_p(a, b) == pytest.approx(math.erfc(off / math.sqrt(50 * 50 * 101 / 12) / math.sqrt(2)), rel=0.2)


@pytest.mark.parametrize("seed", range(30))
def test_test_and_interval_say_the_same(seed: int) -> None:
    """p is at most 5 % exactly where the interval leaves out zero."""
    rng = random.Random(seed)
    a = [rng.gauss(0, 1) for _ in range(rng.randint(4, 9))]
    b = [rng.gauss(0.8, 1) for _ in range(rng.randint(4, 9))]
    shift = shift_between(a, b, confidence=0.95)
    assert (shift.p <= 0.05) == shift.shown


def test_students_t_is_that_of_the_tables() -> None:
    """For odd and even degrees of freedom, and for the interval of a mean made with it."""
    for degrees, value in ((1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042)):
        assert student_t(0.975, degrees) == pytest.approx(value, abs=5e-4)
    half = 4.3027 / 3**0.5
    assert mean_interval([1.0, 2.0, 3.0], confidence=0.95) == pytest.approx((2 - half, 2 + half), abs=1e-3)
    assert mean_interval([1.0], confidence=0.95) == (-math.inf, math.inf)


def test_a_side_without_runs_is_refused() -> None:
    """Nothing against something is no comparison."""
    with pytest.raises(ValueError, match="0 and 1"):
        shift_between([], [1.0], confidence=0.95)
