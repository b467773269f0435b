"""Statistics whose unit is a run: what repeated runs can tell of a difference, with nothing assumed of their noise.

Theory of operation. The requests of one run share its machine, its minute and its queue, so a million of them are one
observation: intervals made from requests are far too narrow (a textbook interval of a p99 held the truth 26 % of the
time in a simulated queue). Each run therefore gives one number, and runs are compared. The estimate of the difference
is Hodges and Lehmann's, the median over all pairs of a run of B and a run of A; its interval are two of these pairwise
differences, chosen by the exact distribution of the rank sum; p is the permutation test of that rank sum, ties
included. All three are one method seen from three sides: p is below 1 - confidence exactly where the interval leaves
out zero (ties apart). E. L. Lehmann, Nonparametrics, 1975, chapters 1 and 2.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from forensics.statistics.robust import Floats, Ints

EXACT_RUNS_MAX = 120
"""With more runs than this on both sides together, the rank sum is taken to be normal."""


@dataclass(frozen=True, slots=True)
class Shift:
    """By how much the values of B exceed those of A. Infinite limits: so few runs bound nothing at this confidence."""

    estimate: float
    lo: float
    hi: float
    p: float

    @property
    def bounded(self) -> bool:
        """True when there are enough runs for an interval."""
        return math.isfinite(self.lo) and math.isfinite(self.hi)

    @property
    def shown(self) -> bool:
        """True when the interval leaves out zero: a difference is shown."""
        return self.bounded and not self.lo <= 0 <= self.hi


def shift_between(a: Sequence[float], b: Sequence[float], *, confidence: float) -> Shift:
    """The shift from A to B, one value a run; `confidence` of its interval, 0.95 for example.

    Raises ValueError when a side has no run.
    """
    if not len(a) or not len(b):
        raise ValueError(f"each side needs at least one run; there are {len(a)} and {len(b)}")
    differences = np.sort(np.subtract.outer(np.asarray(b, float), np.asarray(a, float)).ravel())
    left_out = _left_out(len(a), len(b), confidence)
    lo, hi = (-math.inf, math.inf)
    if left_out >= 0:
        lo, hi = float(differences[left_out]), float(differences[-1 - left_out])
    return Shift(float(np.median(differences)), lo, hi, permutation_p(a, b))


def permutation_p(a: Sequence[float], b: Sequence[float]) -> float:
    """How probable so large a rank sum, on either side, is when the labels A and B mean nothing; exact, with ties."""
    doubled = _doubled_ranks(np.concatenate([np.asarray(a, float), np.asarray(b, float)]))
    m, n = len(a), len(b)
    expected = m * (m + n + 1)
    off = abs(int(doubled[:m].sum()) - expected)
    if m + n > EXACT_RUNS_MAX:
        mean_square = float(np.var(doubled))
        deviation = math.sqrt(mean_square * m * n / (m + n - 1))
        return math.erfc(max(0.0, off - 1) / deviation / math.sqrt(2)) if deviation else 1.0
    chances = _sums_of(doubled, m)
    far = np.abs(np.arange(len(chances)) - expected) >= off
    return min(1.0, float(chances[far].sum()))


def best_p(runs_a: int, runs_b: int) -> float:
    """The smallest p that so many runs can give, however large the difference is."""
    return min(1.0, 2 / math.comb(runs_a + runs_b, runs_a))


def runs_needed(confidence: float) -> int:
    """Runs a side from which on there is an interval of this confidence."""
    return next(n for n in range(1, 100) if best_p(n, n) <= 1 - confidence + 1e-12)


def mean_interval(values: Sequence[float], *, confidence: float) -> tuple[float, float]:
    """Limits of the mean of one side's runs, by Student's t; infinite for a single run."""
    n = len(values)
    if n < 2:
        return -math.inf, math.inf
    mean = sum(values) / n
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    half = student_t((1 + confidence) / 2, n - 1) * deviation / math.sqrt(n)
    return mean - half, mean + half


def student_t(share: float, degrees: int) -> float:
    """The quantile of Student's t for a share above one half."""
    lo, hi = 0.0, 1.0
    while _within(hi, degrees) < 2 * share - 1:
        hi *= 2
    for _ in range(80):
        middle = (lo + hi) / 2
        lo, hi = (middle, hi) if _within(middle, degrees) < 2 * share - 1 else (lo, middle)
    return hi


def _within(t: float, degrees: int) -> float:
    """How probable |T| <= t is: the finite series of Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term = total = 0.0 if degrees == 1 else cosine if odd else 1.0
    for k in range(3 if odd else 2, degrees - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def _left_out(m: int, n: int, confidence: float) -> int:
    """How many pairwise differences lie outside the interval at either end; -1 when even all of them are too few."""
    if m + n > EXACT_RUNS_MAX:
        deviation = math.sqrt(m * n * (m + n + 1) / 12)
        return math.floor(m * n / 2 - NormalDist().inv_cdf((1 + confidence) / 2) * deviation)
    chances = _sums_of(2 * np.arange(1, m + n + 1), m)[m * (m + 1) :: 2]
    below = np.cumsum(chances)
    return int(np.searchsorted(below, (1 - confidence) / 2 + 1e-12, side="right")) - 1


def _doubled_ranks(values: Floats) -> Ints:
    """Twice each value's rank, equal ones sharing theirs: doubled, so that they are whole."""
    ordered = np.sort(values)
    first, behind = np.searchsorted(ordered, values, side="left"), np.searchsorted(ordered, values, side="right")
    return np.asarray(first + behind + 1, np.int64)


def _sums_of(ranks: Ints, count: int) -> Floats:
    """The probability of each sum of `count` of these ranks, drawn without putting back; indexed by the sum."""
    largest = int(np.sort(ranks)[-count:].sum())
    ways = np.zeros((count + 1, largest + 1))
    ways[0, 0] = 1
    for rank in ranks.tolist():
        # Not +=: a rank counts once, so all sums with it are made from those without it.
        ways[1:, rank:] = ways[1:, rank:] + ways[:-1, : largest + 1 - rank]
    chances: Floats = ways[count] / ways[count].sum()
    return chances
