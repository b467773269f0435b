"""Whether a fault moved what a user sees."""

import numpy as np
import pytest

from bench.lineup.impact import rise

S = 1_000_000
BEFORE, DURING = (0, 20 * S), (20 * S, 40 * S)


def sampled(slow_share: float, slow_ms: float, seed: int = 1) -> tuple[list[int], list[float]]:
    """50 requests a second of about 20 ms; in the second half so many are slow."""
    rng = np.random.default_rng(seed)
    at = np.sort(rng.uniform(0, 40 * S, 2000)).astype(int)
    ms = rng.lognormal(3, 0.2, 2000)
    slow = (at >= 20 * S) & (rng.random(2000) < slow_share)
    return at.tolist(), np.where(slow, slow_ms, ms).tolist()


def test_a_tail_that_rises_is_an_impact() -> None:
    """Three in a hundred requests of 200 ms."""
    found = rise(*sampled(0.03, 200), before=BEFORE, during=DURING, figure="p99")
    assert found.is_real
    assert found.by_ms == pytest.approx(200 - found.before_ms)
    assert found.count_before + found.count_during == 2000


def test_nothing_is_no_impact() -> None:
    """Not for any of ten seeds, at neither figure."""
    for seed in range(10):
        for figure in ("p50", "p99"):
            assert not rise(*sampled(0, 0, seed), before=BEFORE, during=DURING, figure=figure).is_real


def test_one_bad_moment_is_hardly_an_impact() -> None:
    """Slow requests within one second may be chance: a bootstrap over blocks of time often has not drawn them."""
    at, ms = sampled(0, 0)
    first = next(i for i, t in enumerate(at) if t > 30 * S)
    ms[first : first + 12] = [500.0] * 12
    found = rise(at, ms, before=BEFORE, during=DURING, figure="p99")
    assert found.by_ms > 400
    assert found.lower_ms < 5


def test_too_few_requests_say_nothing() -> None:
    """A window without traffic is not a fast one."""
    assert not rise([1, 2, 3], [1.0, 2.0, 3.0], before=BEFORE, during=DURING, figure="p99").is_real
