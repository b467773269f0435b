"""Events that come back: found with their period among noise; irregular ones are let alone."""

from typing import Any

import numpy as np
import pytest
from binomial_bounds import at_least, at_most

from forensics.statistics.event_periods import find_event_period

LENGTH = 600e9


def regular(seed: int, count: int, *, jitter: float = 0.0, kept: float = 1.0, extra: int = 0) -> Any:
    """Events every LENGTH / count, give or take a share of that; some are missing, and some come in between."""
    rng = np.random.default_rng(seed)
    period = LENGTH / count
    at = rng.uniform(0, period) + period * np.arange(count) + jitter * period * rng.standard_normal(count)
    return np.concatenate([at[rng.random(count) < kept], rng.uniform(0, LENGTH, extra)])


@pytest.mark.parametrize(
    ("count", "how"),
    [
        (10, {}),
        (40, {}),
        (40, {"jitter": 0.05}),
        (400, {"jitter": 0.12}),
        (40, {"kept": 0.7}),
        (40, {"extra": 12}),
        (2000, {"kept": 0.8, "extra": 200}),
    ],
    ids=str,
)
def test_regular_events_are_found(count: int, how: Any) -> None:
    """With jitter, with gaps, with others between them: in 19 of 20 runs, to a hundredth, and not a multiple."""
    runs = {10: 20, 40: 20, 400: 5, 2000: 2}[count]
    found = [find_event_period(regular(seed, count, **how), span=(0, LENGTH), seed=seed) for seed in range(runs)]
    right = [p for p in found if p is not None and p.period == pytest.approx(LENGTH / count, rel=0.01)]
    assert len(right) >= at_least(runs, 0.95)


@pytest.mark.parametrize("count", [8, 30, 300])
def test_random_events_have_no_period(count: int) -> None:
    """In 199 of 200 runs, whether they fall anywhere or keep a distance from each other."""
    alarms = 0
    runs = 20 if count < 100 else 5
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        anywhere = rng.uniform(0, LENGTH, count)
        apart = np.cumsum((0.3 + rng.exponential(0.7, count)) * LENGTH / count)
        alarms += sum(find_event_period(at, seed=seed) is not None for at in (anywhere, apart))
    assert alarms <= at_most(2 * runs, 0.005)


def test_what_is_said_of_them() -> None:
    """Every 15 s from 4 s on, with a jitter of 0.3 s; a fourth is missing."""
    rng = np.random.default_rng(2)
    at = 4e9 + 15e9 * np.arange(40) + 0.3e9 * rng.standard_normal(40)
    found = find_event_period(at[np.arange(40) % 4 != 2], span=(0, LENGTH))
    assert found is not None
    assert found.period == pytest.approx(15e9, rel=0.001)
    assert found.phase == pytest.approx(4e9, abs=0.2e9)
    assert found.jitter == pytest.approx(0.3e9, rel=0.3)
    assert found.kept == pytest.approx(0.75)
    assert found.cycles == pytest.approx(40, rel=0.001)
    assert found.p_value < 1e-6


def test_few_events_and_none_have_no_period() -> None:
    """Seven in a row may be chance; all at one instant are one."""
    assert find_event_period(np.arange(7) * 1e9) is None
    assert find_event_period(np.zeros(0)) is None
    assert find_event_period(np.full(50, 3e9)) is None
