"""The prefetch policy: enough for the next batch, never more, and always something for an empty-handed worker."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.policy.batching import BatchLimits
from shared.policy.prefetch import how_many

limits_of_any_kind = st.builds(
    BatchLimits, rows_max=st.integers(1, 1024), cost_max=st.one_of(st.just(0), st.integers(1, 100_000))
)
means = st.floats(0, 10_000, allow_nan=False)


@given(limits_of_any_kind, means, means)
def test_an_empty_handed_worker_asks_for_at_least_one(limits: BatchLimits, mean_rows: float, mean_cost: float) -> None:
    """However large the requests were lately: else it would never learn that they have become small."""
    asked = how_many(held=0, held_rows=0, held_cost=0, mean_rows=mean_rows, mean_cost=mean_cost, limits=limits)
    assert 1 <= asked <= limits.rows_max


@given(limits_of_any_kind, st.integers(1, 2000), st.integers(0, 200_000), means, means)
def test_what_is_held_and_asked_for_is_at_most_a_batch(
    limits: BatchLimits, held: int, held_cost: int, mean_rows: float, mean_cost: float
) -> None:
    """If the next requests are as those before, rows and cost stay within one batch: others can take the rest."""
    asked = how_many(
        held=held, held_rows=held, held_cost=held_cost, mean_rows=mean_rows, mean_cost=mean_cost, limits=limits
    )
    assert asked >= 0
    if asked:
        assert held + asked * max(1.0, mean_rows) <= limits.rows_max * (1 + 1e-9)
        assert not limits.cost_max or held_cost + asked * max(1.0, mean_cost) <= limits.cost_max * (1 + 1e-9)


@given(limits_of_any_kind, means, means, st.integers(0, 5000))
def test_a_worker_with_a_whole_batch_asks_for_nothing(
    limits: BatchLimits, mean_rows: float, mean_cost: float, more: int
) -> None:
    """Full by rows or by cost, nothing more is taken away from the others."""
    full_rows = how_many(
        held=1,
        held_rows=limits.rows_max + more,
        held_cost=0,
        mean_rows=mean_rows,
        mean_cost=mean_cost,
        limits=limits,
    )
    assert full_rows == 0
    if limits.cost_max:
        full_cost = how_many(
            held=1,
            held_rows=0,
            held_cost=limits.cost_max + more,
            mean_rows=mean_rows,
            mean_cost=mean_cost,
            limits=limits,
        )
        assert full_cost == 0


@given(limits_of_any_kind, means, means)
def test_taking_what_was_asked_for_leads_to_a_batch_and_stops(
    limits: BatchLimits, mean_rows: float, mean_cost: float
) -> None:
    """The loop of asking ends: with a batch at hand, or with less than a request's room left."""
    rows, cost = max(1, math.ceil(mean_rows)), max(1, math.ceil(mean_cost))
    held = 0
    for _ in range(3):
        held += how_many(
            held=held, held_rows=held * rows, held_cost=held * cost, mean_rows=rows, mean_cost=cost, limits=limits
        )
    assert (
        how_many(held=held, held_rows=held * rows, held_cost=held * cost, mean_rows=rows, mean_cost=cost, limits=limits)
        == 0
    )


@pytest.mark.parametrize(
    ("held", "mean_rows", "mean_cost", "limits", "asked"),
    [
        pytest.param(0, 1, 1, BatchLimits(32), 32, id="a batch of single rows"),
        pytest.param(10, 1, 1, BatchLimits(32), 22, id="the rest of a batch"),
        pytest.param(0, 8, 1, BatchLimits(32), 4, id="larger requests, fewer of them"),
        pytest.param(0, 1, 100, BatchLimits(32, cost_max=1000), 10, id="the budget is reached first"),
        pytest.param(0, 100, 1, BatchLimits(32), 1, id="each is more than a batch"),
    ],
)
def test_how_many(held: int, mean_rows: float, mean_cost: float, limits: BatchLimits, asked: int) -> None:
    """The rule by example; held requests are of the mean size."""
    got = how_many(
        held=held,
        held_rows=round(held * mean_rows),
        held_cost=round(held * mean_cost),
        mean_rows=mean_rows,
        mean_cost=mean_cost,
        limits=limits,
    )
    assert got == asked
