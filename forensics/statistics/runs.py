"""Are these runs slower than those? Runs are compared, not requests: requests of a run share its fate, runs do not.

Each run gives one number, its p99 say. The estimate is the ratio by Hodges and Lehmann (1963): the median of all ratios
between a run of one side and a run of the other, which one bad run cannot move. Test and interval belong to it: they
are the exact permutation distribution of the ranks (Wilcoxon, Mann and Whitney), counted, not drawn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from forensics.statistics.robust import Floats, Ints


@dataclass(frozen=True, slots=True)
class RunComparison:
    """after / before = `ratio`, and with the level's certainty between `lo` and `hi`.

    With too few runs for that level (fewer than 4 against 4 for 95 %; 6 pairs) these are 0 and infinity. `p_value` is
    two-sided: how many of the ways to deal the runs to the two sides would put them as far apart.
    """

    ratio: float
    lo: float
    hi: float
    p_value: float


def compare_runs(before: Sequence[float], after: Sequence[float], *, level: float = 0.95) -> RunComparison:
    """Compare two sets of runs by a number > 0 of each, such as their p99 in ns. Neither set may be empty."""
    old, new = _logs(before), _logs(after)
    differences = np.sort((new[:, None] - old[None, :]).ravel())
    ranks = _doubled_ranks(np.concatenate([old, new]))
    chances = _subset_sums(ranks, len(new)) / comb(len(ranks), len(new))
    # Without ties the statistic behind the interval counts the differences above 0: 0 .. old x new.
    places = _subset_sums(np.arange(2, 2 * len(ranks) + 1, 2), len(new)) / comb(len(ranks), len(new))
    lowest = len(new) * (len(new) + 1)
    return _comparison(
        differences, places[lowest::2][: len(differences) + 1], _two_sided(chances, int(ranks[len(old) :].sum())), level
    )


def compare_pairs(before: Sequence[float], after: Sequence[float], *, level: float = 0.95) -> RunComparison:
    """Compare runs made in pairs (interleaved, as A B B A): what a pair shares, such as a busy machine, falls out.

    Numbers > 0, as many of each; the i-th of both are a pair. Ratios of the pairs, and the means of any two of them.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} runs before and {len(after)} after; pairs need as many of each")
    ratios = _logs(after) - _logs(before)
    first, second = np.triu_indices(len(ratios))
    means = np.sort((ratios[first] + ratios[second]) / 2)
    changed = ratios[ratios != 0]
    ranks = _doubled_ranks(np.abs(changed))
    p_value = _two_sided(_sign_sums(ranks) / 2.0 ** len(ranks), int(ranks[changed > 0].sum())) if len(ranks) else 1.0
    places = _sign_sums(np.arange(1, len(ratios) + 1)) / 2.0 ** len(ratios)
    return _comparison(means, places, p_value, level)


def _logs(values: Sequence[float]) -> Floats:
    logs = np.asarray(values, dtype=np.float64)
    if not len(logs) or not np.all(logs > 0):
        raise ValueError("runs are compared by a number above 0 of each, and there must be at least one")
    return np.log(logs)


def _comparison(ordered: Floats, places: Floats, p_value: float, level: float) -> RunComparison:
    """The median of `ordered`, and the ends that leave less than (1 - level) / 2 outside on each side.

    `places[k]` is the probability that k of them are above the truth.
    """
    outside = int(np.searchsorted(np.cumsum(places), (1 - level) / 2 * (1 + 1e-9), side="right"))
    return RunComparison(
        ratio=float(np.exp(np.median(ordered))),
        lo=float(np.exp(ordered[outside - 1])) if outside else 0.0,
        hi=float(np.exp(ordered[-outside])) if outside else float("inf"),
        p_value=p_value,
    )


def _two_sided(chances: Floats, seen: int) -> float:
    """The probability of a sum at least as far to its side as `seen`, twice; `chances[s]` is that of the sum s."""
    sides = (float(chances[: seen + 1].sum()), float(chances[seen:].sum()))
    return min(2 * min(sides), 1.0)


def _doubled_ranks(values: Floats) -> Ints:
    """Twice the ranks from 1, in the order of `values`; those that tie share the mean, so twice it is a whole
    number."""
    _, at, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (2 * last - counts + 1)[at].astype(np.int64)


def _subset_sums(ranks: Ints, size: int) -> Floats:
    """In how many ways `size` of the ranks have each sum, [sums]. Counted rank by rank; exact up to 2^53."""
    ways = np.zeros((size + 1, int(ranks.sum()) + 1))
    ways[0, 0] = 1
    for rank in ranks.tolist():
        for taken in range(size, 0, -1):
            ways[taken, rank:] += ways[taken - 1, : ways.shape[1] - rank]
    sums: Floats = ways[size]
    return sums


def _sign_sums(ranks: Ints) -> Floats:
    """In how many ways a choice of the ranks, of any size, has each sum, [sums]."""
    ways = np.zeros(int(ranks.sum()) + 1)
    ways[0] = 1
    for rank in ranks.tolist():
        ways[rank:] += ways[: len(ways) - rank].copy()
    return ways
