"""Runs against runs: exact, and not to be moved by one bad run."""

from itertools import combinations, product
from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.statistics.runs import compare_pairs, compare_runs

FEW = st.lists(st.integers(1, 6), min_size=1, max_size=5)


def ranks(values: list[Any]) -> list[float]:
    """Ranks from 1; who ties shares the mean."""
    return [sum(w < v for w in values) + (sum(w == v for w in values) + 1) / 2 for v in values]


@settings(max_examples=60)
@given(FEW, FEW)
def test_the_p_value_counts_every_deal_of_the_runs(before: list[int], after: list[int]) -> None:
    """Against trying them all: how many deals put the rank sum as far to its side, twice."""
    ranked = ranks(before + after)
    seen = sum(ranked[len(before) :])
    sums = [sum(deal) for deal in combinations(ranked, len(after))]
    assert len(sums) == comb(len(ranked), len(after))
    sides = (sum(s <= seen for s in sums), sum(s >= seen for s in sums))
    assert compare_runs(before, after).p_value == pytest.approx(min(2 * min(sides) / len(sums), 1))


@settings(max_examples=60)
@given(st.lists(st.sampled_from([1 / 4, 1 / 2, 1, 2, 4, 8]), min_size=1, max_size=8))
def test_the_p_value_of_pairs_counts_every_choice_of_signs(ratios: list[float]) -> None:
    """Against trying them all; pairs without a difference say nothing."""
    changed = [float(np.log(r)) for r in ratios if r != 1]
    ranked = ranks([round(abs(c), 9) for c in changed])
    seen = sum(r for r, c in zip(ranked, changed, strict=True) if c > 0)
    sums = [sum(r for r, s in zip(ranked, signs, strict=True) if s) for signs in product((0, 1), repeat=len(ranked))]
    sides = (sum(s <= seen + 1e-9 for s in sums), sum(s >= seen - 1e-9 for s in sums))
    expected = min(2 * min(sides) / len(sums), 1)
    assert compare_pairs([1.0] * len(ratios), ratios).p_value == pytest.approx(expected)


def test_the_interval_is_that_of_the_tables() -> None:
    """8 against 8: the 14th smallest of 64 ratios and the 14th largest; 10 pairs: the 9th of 55 means."""
    rng = np.random.default_rng(1)
    before, after = np.exp(rng.normal(0, 1, 8)), np.exp(rng.normal(0, 1, 8))
    seen = compare_runs(before.tolist(), after.tolist())
    ordered = np.sort((after[:, None] / before[None, :]).ravel())
    assert (seen.lo, seen.hi) == pytest.approx((ordered[13], ordered[-14]))
    assert seen.ratio == pytest.approx(float(np.exp(np.median(np.log(ordered)))))

    ratios = np.exp(rng.normal(0, 1, 10))
    paired = compare_pairs([1.0] * 10, ratios.tolist())
    first, second = np.triu_indices(10)
    means = np.sort(np.sqrt(ratios[first] * ratios[second]))
    assert (paired.lo, paired.hi) == pytest.approx((means[8], means[-9]))


def test_the_interval_holds_the_true_ratio_as_often_as_it_says() -> None:
    """Runs that differ by 10 % among themselves, one side 5 % slower: 95 %, and false alarms in 5 %."""
    rng = np.random.default_rng(1)
    held = paired_held = alarms = 0
    for _ in range(200):
        before, after = (np.exp(rng.normal(0, 0.1, 8)) for _ in range(2))
        alarms += compare_runs(before.tolist(), after.tolist()).p_value < 0.05
        seen = compare_runs(before.tolist(), (after * 1.05).tolist())
        held += seen.lo <= 1.05 <= seen.hi
        paired = compare_pairs(before.tolist(), (after * 1.05).tolist())
        paired_held += paired.lo <= 1.05 <= paired.hi
    assert held >= 182
    assert paired_held >= 182
    assert alarms <= 18


def test_one_bad_run_moves_little() -> None:
    """A machine that stood still for one run of eight."""
    before, after = [100.0] * 4 + [101.0] * 4, [120.0] * 7 + [9_000.0]
    assert compare_runs(before, after).ratio == pytest.approx(1.2, rel=0.01)


def test_what_pairs_share_falls_out() -> None:
    """A machine that gets three times slower in the course of the day; each second run is 10 % slower."""
    busy = np.linspace(1, 3, 8)
    before, after = (100 * busy).tolist(), (110 * busy).tolist()
    assert compare_pairs(before, after).p_value < 0.01
    assert compare_pairs(before, after).ratio == pytest.approx(1.1)
    assert compare_runs(before, after).p_value > 0.3


def test_too_few_runs_have_no_interval() -> None:
    """Three against three can never be as sure as 95 %."""
    seen = compare_runs([1.0, 2.0, 3.0], [10.0, 20.0, 30.0])
    assert (seen.lo, seen.hi) == (0.0, float("inf"))
    assert seen.p_value == pytest.approx(0.1)
    assert compare_runs([1.0] * 4, [10.0] * 4).lo == pytest.approx(10)
    assert compare_pairs([1.0], [2.0]).p_value == 1


def test_fifty_against_fifty_are_counted_too() -> None:
    """There are 10^29 ways to deal them; the counting is by rank, not by deal."""
    rng = np.random.default_rng(1)
    seen = compare_runs(np.exp(rng.normal(0, 0.1, 50)).tolist(), np.exp(rng.normal(0.1, 0.1, 50)).tolist())
    assert 0 < seen.p_value < 0.001
    assert seen.lo < seen.ratio < seen.hi


@pytest.mark.parametrize(("before", "after"), [([], [1.0]), ([1.0], []), ([0.0], [1.0]), ([1.0], [-1.0])])
def test_runs_without_a_number_are_refused(before: list[float], after: list[float]) -> None:
    """A ratio needs numbers above 0."""
    with pytest.raises(ValueError, match="above 0"):
        compare_runs(before, after)


def test_pairs_of_unequal_number_are_refused() -> None:
    """Who is whose partner?"""
    with pytest.raises(ValueError, match="2 runs before and 1 after"):
        compare_pairs([1.0, 2.0], [1.0])
