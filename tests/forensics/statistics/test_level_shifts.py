"""Both detectors do what their books say: checked against the slow way of doing it."""

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from binomial_bounds import at_most
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.statistics.robust import noise
from forensics.statistics.shifts import block_orders, confirmed, e_divisive, pelt

SERIES = st.lists(st.integers(-3, 3), min_size=8, max_size=16).map(lambda s: np.array(s, dtype=np.float64))


def cost_of(series: Any, cuts: tuple[int, ...]) -> float:
    """What PELT pays for a cut of a series: the variance left in the pieces, and a penalty for each cut."""
    sd, r = noise(series)
    penalty = 2 * np.log(len(series)) * (1 + r) / (1 - r)
    pieces = [series[a:b] / sd for a, b in pairwise([0, *cuts, len(series)])]
    return float(sum(((p - p.mean()) ** 2).sum() for p in pieces) + penalty * len(cuts))


@settings(max_examples=40)
@given(SERIES, st.integers(2, 3))
def test_pelt_finds_the_cheapest_cut_of_all(series: Any, piece_min: int) -> None:
    """Every way to cut the series is tried; what pruning leaves out was never the best."""
    if noise(series)[0] == 0:
        assert pelt(series, piece_min=piece_min) == []
        return
    ways = [
        cuts
        for count in range(len(series) // piece_min)
        for cuts in combinations(range(piece_min, len(series)), count)
        if all(b - a >= piece_min for a, b in pairwise([0, *cuts, len(series)]))
    ]
    found = pelt(series, piece_min=piece_min)
    assert cost_of(series, tuple(found)) == pytest.approx(min(cost_of(series, cuts) for cuts in ways))


def energy(x: Any, y: Any) -> float:
    """The energy distance of two samples, as it is defined: by all pairs."""
    between, within_x, within_y = (np.abs(a[:, None] - b[None, :]).mean() for a, b in ((x, y), (x, x), (y, y)))
    return float(len(x) * len(y) / (len(x) + len(y)) * (2 * between - within_x - within_y))


@pytest.mark.parametrize("seed", range(5))
def test_e_divisive_splits_where_the_energy_distance_is_greatest(seed: int) -> None:
    """The distance by distribution functions is that by all pairs, so the best split is the same."""
    rng = np.random.default_rng(seed)
    series = np.concatenate([rng.integers(0, 20, 17), rng.integers(12, 32, 11)]).astype(np.float64)
    best = max(range(4, len(series) - 3), key=lambda at: energy(series[:at], series[at:]))
    split = e_divisive(series)
    assert split is not None
    assert split.at == best


def test_two_steps_are_two_cuts() -> None:
    """Up and down again: an episode has a beginning and an end."""
    series = np.random.default_rng(1).normal(0, 1, 150)
    series[60:90] += 4
    assert pelt(series) == pytest.approx([60, 90], abs=1)
    assert confirmed(series, pelt(series)) == pelt(series)


def test_cuts_where_nothing_is_are_given_up() -> None:
    """One step, and a first detector that cuts everywhere."""
    series = np.random.default_rng(1).normal(0, 1, 150)
    series[75:] += 3
    assert confirmed(series, [20, 40, 75, 90, 94, 130]) == [75]
    assert confirmed(series, []) == []
    assert confirmed(np.zeros(100), [50]) == []


def test_noise_with_a_memory_is_no_step() -> None:
    """With the penalty for independent noise, PELT cuts most series that wander (r = 0.6); here 1 in 50 is cut."""
    fired = 0
    for seed in range(40):
        shocks = np.random.default_rng(seed).normal(0, 1, 150)
        series = np.empty(150)
        series[0] = shocks[0]
        for i in range(1, 150):
            series[i] = 0.6 * series[i - 1] + shocks[i]
        fired += bool(confirmed(series, pelt(series)))
    assert fired <= at_most(40, 0.02)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 3))
def test_shuffled_blocks_hold_every_item_once(count: int, block: int, seed: int) -> None:
    """And neighbours within a block stay neighbours."""
    for order in block_orders(count, block, 5, np.random.default_rng(seed)).tolist():
        assert sorted(order) == list(range(count))
        assert all(b == a + 1 for a, b in pairwise(order) if a // block == b // block)
