"""Least squares without negative coefficients, exact, for the few unknowns of a law of nature.

A least-squares problem of n unknowns is kept as its normal equations `M x = v` (M: sums of products of features, v:
sums of feature times measurement), so its size does not grow with the measurements. The minimum over x >= 0 is the
solution on one subset of the unknowns, the others 0; which one is told by the Karush-Kuhn-Tucker conditions (Lawson and
Hanson, "Solving Least Squares Problems", chapter 23). Four unknowns have sixteen subsets: they are just tried.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

Matrix = Sequence[Sequence[float]]

TOLERANCE = 1e-9
"""Of the conditions, in units of the scaled problem."""


def solve(matrix: Matrix, vector: Sequence[float], start: Sequence[float], stiffness: float) -> list[float]:
    """Minimise x·M·x / 2 - v·x + stiffness · sum(M_ii (x_i - start_i)²) / 2 over x >= 0.

    `matrix` is symmetric and positive semidefinite, `start` not negative, `stiffness` > 0. The last term keeps what
    the measurements do not tell (features that were never seen, or only together) where it was. Features of very
    different size are fine, since the problem is scaled by its diagonal first.
    """
    size = len(vector)
    known = [i for i in range(size) if matrix[i][i] > 0]
    scale = [matrix[i][i] ** -0.5 for i in known]
    m = [[matrix[i][j] * s * t for j, t in zip(known, scale, strict=True)] for i, s in zip(known, scale, strict=True)]
    v = [vector[i] * s + stiffness * start[i] / s for i, s in zip(known, scale, strict=True)]
    for k, row in enumerate(m):
        row[k] += stiffness
    found = list(start)
    # Most often the unknowns that were not 0 before are so again.
    likely = tuple(k for k, i in enumerate(known) if start[i] > 0)
    for subset in _candidates(likely, len(known)):
        x = _solve_on(subset, m, v)
        if x and min(x) < 0:
            continue
        if len(x) < len(known) and not _is_minimum(subset, x, m, v):
            continue
        for k, i in enumerate(known):
            found[i] = x[subset.index(k)] * scale[k] if k in subset else 0.0
        break
    return found


def _candidates(likely: tuple[int, ...], size: int) -> Iterator[tuple[int, ...]]:
    yield likely
    for count in range(size, -1, -1):
        yield from combinations(range(size), count)


def _is_minimum(subset: tuple[int, ...], x: Sequence[float], m: Matrix, v: Sequence[float]) -> bool:
    """Would none of the others reduce the error by becoming positive?"""
    for k, row in enumerate(m):
        if k not in subset:
            gradient = sum(row[j] * x_j for j, x_j in zip(subset, x, strict=True)) - v[k]
            if gradient < -TOLERANCE * max(1.0, abs(v[k])):
                return False
    return True


def _solve_on(subset: tuple[int, ...], m: Matrix, v: Sequence[float]) -> list[float]:
    """Gauss without pivots: the matrix is positive definite, thanks to the stiffness."""
    rows = [[*(m[i][j] for j in subset), v[i]] for i in subset]
    size = len(rows)
    for k, pivot in enumerate(rows):
        for row in rows[k + 1 :]:
            factor = row[k] / pivot[k]
            for column in range(k + 1, size + 1):
                row[column] -= factor * pivot[column]
    x = [0.0] * size
    for k in range(size - 1, -1, -1):
        row = rows[k]
        rest = row[size]
        for column in range(k + 1, size):
            rest -= row[column] * x[column]
        x[k] = rest / row[k]
    return x
