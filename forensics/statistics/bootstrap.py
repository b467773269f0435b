"""How sure is a number that was computed from requests, when neighbouring requests share their fate?

The textbook's interval for a quantile takes requests for independent. At a single server with load 0.7 its "95 %" held
the true p99 in 26 % of runs. Here whole blocks of time are drawn again, so what goes together stays together (Kunsch,
1989). The blocks must be longer than what ties requests together, and there must be many of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from forensics.statistics.robust import Floats, Ints, Numbers

BLOCK_NS = 10_000_000_000
"""A block is at least this long: several busy periods."""
RESAMPLES = 400
BLOCKS_MIN = 8
"""With fewer blocks there is nothing to draw from."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and what else it might be; `blocks` is from how many stretches of time that is known.

    Less sure than it says when these are few: see `block_interval`.
    """

    estimate: float
    lo: float
    hi: float
    blocks: int


def correlated_items(series: Floats) -> float:
    """How many neighbours say what one alone would say: the integrated autocorrelation time, in items, at least 1.

    1 + 2 sum of the autocorrelations, cut off at the first lag that is five times the sum so far (Sokal's window).
    """
    count = len(series)
    centred = series - np.mean(series) if count else series
    power = float(centred @ centred)
    if count < 8 or power == 0:
        return 1.0
    size = 1 << (2 * count - 1).bit_length()
    correlation = np.fft.irfft(np.abs(np.fft.rfft(centred, size)) ** 2, size)[: count // 4] / power
    heaped = 2 * np.cumsum(correlation) - 1
    beyond = np.flatnonzero(np.arange(len(heaped)) >= 5 * heaped)
    return max(float(heaped[beyond[0] if len(beyond) else -1]), 1.0)


def block_length(at_ns: Ints, value_ns: Ints, *, least_ns: int = BLOCK_NS) -> int:
    """How long a block should be, in ns: 10 s, or ten times what ties requests together, if that is longer.

    `at_ns` is sorted, [requests]; the values' logarithms are looked at, so that one outage is not all that counts.
    """
    if len(at_ns) < 2:
        return least_ns
    tied = correlated_items(np.log(np.maximum(value_ns, 1)))
    return max(least_ns, int(10 * tied * (int(at_ns[-1]) - int(at_ns[0])) / (len(at_ns) - 1)))


def block_indices(at_ns: Ints, block_ns: int, resamples: int, *, seed: int = 0) -> Iterator[Ints]:
    """For each resample the indices of its requests: stretches of `block_ns` at random, until the time is filled.

    `at_ns` is sorted, [requests]. The blocks may begin anywhere, also so late that they go round the end: else the
    first and the last requests would be drawn too rarely. A list without times is `np.arange(n)`, its blocks in items.
    """
    if len(at_ns) == 0:
        raise ValueError("nothing to draw from; give at least one request")
    rng = np.random.default_rng(seed)
    first, length = int(at_ns[0]), int(at_ns[-1] - at_ns[0]) + 1
    block_ns = min(block_ns, length)
    blocks = -(-length // block_ns)
    # Twice around, so that a block that goes round the end is one stretch.
    twice_ns = np.concatenate([at_ns - first, at_ns - first + length])
    for _ in range(resamples):
        starts = rng.integers(0, length, blocks)
        ends = starts + block_ns
        # The last block is cut, so that each resample is as long as the original.
        ends[-1] -= blocks * block_ns - length
        begin, end = np.searchsorted(twice_ns, starts), np.searchsorted(twice_ns, ends)
        indices = np.concatenate([np.arange(b, e) for b, e in zip(begin.tolist(), end.tolist(), strict=True)])
        yield indices % len(at_ns)


def replicates(
    statistic: Callable[..., float | Floats],
    at_ns: Ints,
    *columns: Numbers,
    block_ns: int,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Floats:
    """What `statistic(*columns)` is for each resample, [resamples, ...]. The columns are [requests], in time order."""
    drawn = block_indices(at_ns, block_ns, resamples, seed=seed)
    return np.array([statistic(*(column[indices] for column in columns)) for indices in drawn if len(indices)])


def block_interval(
    statistic: Callable[..., float],
    at_ns: Ints,
    *columns: Numbers,
    block_ns: int | None = None,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """The interval of `statistic(*columns)`, a number; without `block_ns` a length is chosen by the first column.

    The percentiles of the replicates, moved apart by what Student's t is wider than a normal distribution for as many
    blocks. Fewer than 8 blocks: ValueError, since nothing could be said.

    Measured on M/M/1 with load 0.7, 20/s, whose truth is known, 100 runs each: an interval that says 95 % has the
    median in 89 to 96 % of runs, p99 in 79 % (300 s) to 84 % (1,000 s). Nearly all other truths of p99 are above it,
    in runs that saw no such outage. Say "about 80 %" of a p99, or compare repeated runs (`runs.py`).
    """
    block_ns = block_ns or block_length(at_ns, columns[0])
    blocks = (int(at_ns[-1]) - int(at_ns[0]) + 1) // block_ns
    if blocks < BLOCKS_MIN:
        raise ValueError(f"{blocks} blocks of {block_ns / 1e9:.0f} s; an interval needs a log of {BLOCKS_MIN} or more")
    estimate = float(statistic(*columns))
    drawn = replicates(statistic, at_ns, *columns, block_ns=block_ns, resamples=resamples, seed=seed)
    lo, hi = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    wider = t_over_normal(level, blocks - 1) * (blocks / (blocks - 1)) ** 0.5
    below, above = estimate - float(lo), float(hi) - estimate
    return Interval(estimate, estimate - wider * below, estimate + wider * above, blocks)


def t_over_normal(level: float, freedom: int) -> float:
    """How much wider Student's two-sided interval is than a normal one: Cornish and Fisher's series, to 0.5 %."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    first = (z**2 + 1) / (4 * freedom)
    second = (5 * z**4 + 16 * z**2 + 3) / (96 * freedom**2)
    third = (3 * z**6 + 19 * z**4 + 17 * z**2 - 15) / (384 * freedom**3)
    return 1 + first + second + third
