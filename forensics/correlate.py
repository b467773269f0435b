"""Outcomes against latency: a dose-response by bands of latency, plain and adjusted for size, hour and model.

Theory of operation. Large requests are slow and may be worth more, and the evening is busy and may sell better: either
makes latency and outcome move together without one causing the other. Requests are therefore sorted into strata of like
size, hour and model, and bands of latency are compared within them: each band's mean is weighted as if it had met the
strata in the same proportions (direct standardisation), over the strata in which every band is met. Where size decides
latency, hardly any stratum meets both fast and slow bands; then requests are banded by how slow they were among their
like, which every stratum can tell. The trend is tested within strata too (Mantel's extension: the permutation variance
of the sum of score times outcome), and in how many of them it points the same way is told. What is not in the logs,
such as who asks, stays unadjusted: all of this is association, and every sentence says so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forensics.outcomes import Joined
from forensics.statistics.robust import Floats, Ints, Mask, Numbers, buckets

BANDS = 10
BAND_REQUESTS_MIN = 20
RELATIVE_BANDS_MAX = 5
REQUESTS_MIN = 40
SIZES_MIN, SIZES_MAX = 4, 20
"""Buckets of size, of equally many requests. Five leave a tenth of what size does by itself, twenty a fortieth."""
STRATUM_WANTED = 100
"""There are as many buckets as leave a stratum so many requests on average."""
HOURS_APART_MAX = 48
"""In longer logs, the hour of the day stands for the hour."""
CELL_MIN = 5
"""A stratum is met by a band that has so many of its requests."""
COVERED_MIN = 0.5
"""Bands are made wider until the strata in which all of them are met hold this share of the requests."""
STRATUM_MIN = 20
"""A stratum with fewer requests has no direction worth counting."""
RESAMPLES, GROUPS = 2_000, 500
Z95 = 1.959963984540054
P_MAX = 0.05
"""A trend with a smaller p is called one."""


@dataclass(frozen=True, slots=True)
class Band:
    """Requests of like latency, and the mean of their outcome with its 95 % limits. The lowest, the median and the
    highest latency met in it are ns; in `relative` bands, multiples of the median of the request's stratum."""

    low: float
    median: float
    high: float
    requests: int
    mean: float
    lo: float
    hi: float


@dataclass(frozen=True, slots=True)
class Trend:
    """Does the outcome rise (`z` > 0) or fall with the bands; `p` is two-sided."""

    z: float
    p: float


@dataclass(frozen=True, slots=True)
class Adjusted:
    """The bands after standardisation; `relative` when they are of the latency among the like. `strata_used` of
    `strata` hold every band, and the share `covered` of the requests.

    `difference` is the slowest band less the fastest, with its 95 % limits. `same_way` of `directed` strata, those with
    enough requests to tell, point where the trend does.
    """

    bands: Sequence[Band]
    relative: bool
    strata: int
    strata_used: int
    covered: float
    difference: float
    lo: float
    hi: float
    trend: Trend
    directed: int
    same_way: int


@dataclass(frozen=True, slots=True)
class Response:
    """What one outcome does along latency. `adjusted` is None when the bands meet in too few strata to compare them."""

    outcome: str
    boolean: bool
    requests: int
    missing: int
    mean: float
    bands: Sequence[Band]
    trend: Trend
    adjusted: Adjusted | None


def respond(
    name: str, values: Floats, joined: Joined, *, boolean: bool, edges_ns: Sequence[int] = (), seed: int = 0
) -> Response:
    """The response of an outcome, `values` [rows of the file]; `edges_ns` are the borders of the bands, else deciles.

    Raises ValueError when there are too few requests.
    """
    y = values[joined.row]
    told = ~np.isnan(y)
    y, e2e_ns = y[told], joined.e2e_ns[told]
    if len(y) < REQUESTS_MIN:
        raise ValueError(f"{len(y)} requests have the outcome {name!r}; at least {REQUESTS_MIN} are needed")
    rng = np.random.default_rng(seed)
    count = min(BANDS, len(y) // BAND_REQUESTS_MIN)
    code = _bands(e2e_ns, edges_ns, count)
    bands = [_band(e2e_ns[code == b], y[code == b], boolean, rng) for b in range(code.max() + 1)]
    strata = _strata(joined, told)
    adjusted = _adjusted_somehow(e2e_ns, y, strata, edges_ns, count, boolean)
    plain = _trend(code, y, np.zeros(len(y), np.int64))
    return Response(name, boolean, len(y), int((~told).sum()), float(y.mean()), bands, plain, adjusted)


def _adjusted_somehow(
    e2e_ns: Ints, y: Floats, strata: Ints, edges_ns: Sequence[int], count: int, boolean: bool
) -> Adjusted | None:
    """By the same bands, else by wider ones, else by bands of the latency among the like."""
    counts = [n for n in (count, 5, 4, 3, 2) if n <= count]
    for n in counts[:1] if edges_ns else counts:
        if (found := _adjusted(e2e_ns / 1, y, _bands(e2e_ns, edges_ns, n), strata, boolean)) is not None:
            return found
    order = np.lexsort((e2e_ns, strata))
    sizes = np.bincount(strata)
    place = np.arange(len(y)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    middles = e2e_ns[order][np.cumsum(sizes) - sizes + sizes // 2]
    ratio = e2e_ns / middles[strata]
    for n in [n for n in counts if n <= RELATIVE_BANDS_MAX]:
        code = np.zeros(len(y), np.int64)
        code[order] = place * n // np.repeat(sizes, sizes)
        if (found := _adjusted(ratio, y, code, strata, boolean, relative=True)) is not None:
            return found
    return None


def wilson(successes: float, count: float) -> tuple[float, float]:
    """The 95 % limits of a share (Wilson 1927)."""
    share, z2 = successes / count, Z95 * Z95
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z95 / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count * count))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def bootstrap_mean(values: Floats, rng: np.random.Generator) -> tuple[float, float]:
    """The 95 % limits of a mean, by resampling. Of many values, random groups are resampled instead: their mean
    varies as much."""
    groups = min(len(values), GROUPS)
    firsts = np.arange(groups) * len(values) // groups
    sums = np.add.reduceat(rng.permutation(values), firsts)
    counts = np.diff(firsts, append=len(values))
    picks = rng.integers(0, groups, size=(RESAMPLES, groups))
    lo, hi = np.quantile(sums[picks].sum(axis=1) / counts[picks].sum(axis=1), [0.025, 0.975])
    return float(lo), float(hi)


def _bands(e2e_ns: Ints, edges_ns: Sequence[int], count: int) -> Ints:
    """The band of each request, from 0; by edges, or so many bands of about equally many requests. No band is empty."""
    ordered = np.sort(e2e_ns)
    edges = np.asarray(edges_ns or [ordered[len(ordered) * i // count] for i in range(1, count)], np.int64)
    code = np.searchsorted(edges, e2e_ns, side="right")
    return np.asarray(np.unique(code, return_inverse=True)[1], np.int64)


def _band(e2e_ns: Ints, y: Floats, boolean: bool, rng: np.random.Generator) -> Band:
    lo, hi = wilson(float(y.sum()), len(y)) if boolean else bootstrap_mean(y, rng)
    return Band(*_spread(e2e_ns), len(y), float(y.mean()), lo, hi)


def _spread(latencies: Numbers) -> tuple[float, float, float]:
    return float(latencies.min()), float(np.median(latencies)), float(latencies.max())


def _strata(joined: Joined, told: Mask) -> Ints:
    """A code for size, hour and model together."""
    size, hour, model = joined.size[told], joined.hour[told], joined.model[told]
    if hour.max() - hour.min() > HOURS_APART_MAX:
        hour = hour % 24
    others = len(np.unique(np.stack([hour, model], axis=1), axis=0))
    count = min(max(len(size) // (others * STRATUM_WANTED), SIZES_MIN), SIZES_MAX)
    whole = np.stack([buckets(size, count), hour, model], axis=1)
    return np.asarray(np.unique(whole, axis=0, return_inverse=True)[1], np.int64).ravel()


def _adjusted(
    latency: Floats, y: Floats, code: Ints, strata: Ints, boolean: bool, *, relative: bool = False
) -> Adjusted | None:
    """The bands with the strata's proportions made equal; None when those that hold every band hold too little."""
    bands, of_strata = int(code.max()) + 1, int(strata.max()) + 1
    if bands < 2:
        return None
    cell = strata * bands + code
    shape = (of_strata, bands)
    counts, sums, squares = (
        np.bincount(cell, weights, minlength=of_strata * bands).reshape(shape).astype(float)
        for weights in (None, y, y * y)
    )
    used = (counts >= CELL_MIN).all(axis=1)
    covered = float(counts[used].sum() / len(y))
    if covered < COVERED_MIN:
        return None
    counts, sums, squares = counts[used], sums[used], squares[used]
    weights = counts.sum(axis=1) / counts.sum()
    means = weights @ (sums / counts)
    variances = weights**2 @ (_cell_variances(counts, sums, squares, boolean) / counts)
    found = []
    for b in range(bands):
        mean, variance = float(means[b]), float(variances[b])
        deviation = math.sqrt(variance)
        lo, hi = mean - Z95 * deviation, mean + Z95 * deviation
        if boolean:
            # As many independent requests as have this variance.
            spread = max(mean * (1 - mean), 1e-12)
            as_many = spread / variance if spread > 1e-12 else float(counts[:, b].sum())
            lo, hi = wilson(mean * as_many, as_many)
        found.append(Band(*_spread(latency[code == b]), int(counts[:, b].sum()), mean, lo, hi))
    difference, deviation = float(means[-1] - means[0]), math.sqrt(variances[0] + variances[-1])
    trend = _trend(code, y, strata)
    directed, same_way = _directions(code, y, strata, trend.z)
    return Adjusted(
        found, relative, of_strata, int(used.sum()), covered, difference, difference - Z95 * deviation,
        difference + Z95 * deviation, trend, directed, same_way,
    )  # fmt: skip


def _cell_variances(counts: Floats, sums: Floats, squares: Floats, boolean: bool) -> Floats:
    """The variance of the outcome within each cell; of shares with one more of either kind, so that a cell of all yes
    or all no is not held to be certain."""
    if boolean:
        shares = (sums + 1) / (counts + 2)
        return np.asarray(shares * (1 - shares))
    return np.asarray(np.maximum(squares - sums**2 / counts, 0) / (counts - 1))


def _moments(code: Ints, y: Floats, strata: Ints) -> tuple[Floats, Floats, Ints]:
    """Of each stratum: the sum of score times outcome about their means, its variance when the outcomes are permuted
    within the stratum, and its requests."""
    n = np.bincount(strata)
    some = np.maximum(n, 1)
    score = code.astype(float)
    score -= (np.bincount(strata, score) / some)[strata]
    off = y - (np.bincount(strata, y) / some)[strata]
    together = np.bincount(strata, score * off)
    variance = np.bincount(strata, score**2) * np.bincount(strata, off**2) / np.maximum(n - 1, 1)
    return np.asarray(together, float), variance, np.asarray(n, np.int64)


def _trend(code: Ints, y: Floats, strata: Ints) -> Trend:
    together, variance, _ = _moments(code, y, strata)
    total = float(variance.sum())
    z = float(together.sum()) / math.sqrt(total) if total > 0 else 0.0
    return Trend(z, math.erfc(abs(z) / math.sqrt(2)))


def _directions(code: Ints, y: Floats, strata: Ints, z: float) -> tuple[int, int]:
    """Of the strata with enough requests and any variation: how many, and how many point where `z` does."""
    together, variance, n = _moments(code, y, strata)
    directed = (n >= STRATUM_MIN) & (variance > 0)
    return int(directed.sum()), int((directed & (together * z > 0)).sum())
