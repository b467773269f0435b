"""Least squares without negative coefficients: it is the minimum, and what is not measured stays."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.policy.nonnegative import solve

STIFFNESS = 1e-6


def equations(rows: list[list[float]], measured: list[float], size: int) -> tuple[list[list[float]], list[float]]:
    """The normal equations of features and measurements."""
    matrix = [[sum(row[i] * row[j] for row in rows) for j in range(size)] for i in range(size)]
    return matrix, [sum(row[i] * y for row, y in zip(rows, measured, strict=True)) for i in range(size)]


def error(x: list[float], rows: list[list[float]], measured: list[float]) -> float:
    return sum(
        (sum(f * c for f, c in zip(row, x, strict=True)) - y) ** 2 for row, y in zip(rows, measured, strict=True)
    )


numbers = st.floats(-10, 10, allow_nan=False).map(lambda x: round(x, 3))
features = st.lists(st.lists(numbers, min_size=4, max_size=4), min_size=4, max_size=12)


@given(features, st.integers(0, 1000))
def test_nothing_near_or_far_is_better(rows: list[list[float]], seed: int) -> None:
    """No point without negative coefficients has a smaller error, whether close by or anywhere."""
    chance = random.Random(seed)
    measured = [chance.uniform(-10, 10) for _ in rows]
    found = solve(*equations(rows, measured, 4), [0.0] * 4, STIFFNESS)
    assert min(found) >= 0
    least = error(found, rows, measured)
    for _ in range(50):
        near = [max(0.0, x + chance.gauss(0, 0.1)) for x in found]
        far = [max(0.0, chance.gauss(0, 3)) for _ in found]
        # The stiffness holds the solution back a little from the exact minimum.
        assert least <= min(error(near, rows, measured), error(far, rows, measured)) * 1.001 + 0.01


@pytest.mark.parametrize("truth", [[2.0, 3.0, 0.0, 5.0], [0.0, 0.0, 0.0, 1.0], [1e6, 1e3, 1e-3, 1.0], [0.0] * 4])
def test_exact_measurements_give_the_exact_coefficients(truth: list[float]) -> None:
    """Also those that are 0, and features of very different size."""
    chance = random.Random(1)
    rows = [[1.0, chance.uniform(1, 1e3), chance.uniform(1, 1e6), chance.uniform(1, 9)] for _ in range(30)]
    measured = [sum(f * c for f, c in zip(row, truth, strict=True)) for row in rows]
    found = solve(*equations(rows, measured, 4), truth, STIFFNESS)
    assert found == pytest.approx(truth, rel=1e-4, abs=1e-4)


def test_what_was_never_measured_stays_where_it_was() -> None:
    """A feature that was 0 in all measurements has no say."""
    rows = [[1.0, x, 0.0, 2 * x] for x in (1.0, 2.0, 3.0)]
    found = solve(*equations(rows, [3.0, 5.0, 7.0], 4), [0.0, 0.0, 7.0, 0.0], STIFFNESS)
    assert found[2] == 7.0


def test_features_that_come_only_together_share() -> None:
    """Rows that all have one length cannot tell cost a unit from cost a row, and need not."""
    rows = [[1.0, x, x, x] for x in (1.0, 2.0, 5.0)]
    found = solve(*equations(rows, [4.0, 7.0, 16.0], 4), [0.0] * 4, STIFFNESS)
    assert found[0] == pytest.approx(1, rel=1e-2)
    assert sum(found[1:]) == pytest.approx(3, rel=1e-2)
