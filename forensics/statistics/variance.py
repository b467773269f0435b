"""What makes latency vary: each part's share of the variance, and which parts rise and fall together.

Var(T) = sum_k Cov(S_k, T), because T is the sum of its parts. So Cov(S_k, T) / Var(T) are shares that sum to 1. A
negative share is a part that compensates: a longer wait for the batch makes the forward pass shorter per request. Two
parts that rise together (queue and forward) are the print of a stall.

(The decomposition of VProfiler, Huang et al., SIGMOD 2017, without its call tree.)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from forensics.statistics.robust import Floats, Ints, quantile

WINSORISED_AT = 0.999
"""Requests beyond this quantile are scaled down to it: otherwise one outage owns the whole variance."""
_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class Pair:
    """Two parts that vary together: `share` is 2 Cov(a, b) / Var(T), `correlation` is within -1 and 1."""

    a: str
    b: str
    share: float
    correlation: float


@dataclass(frozen=True, slots=True)
class VarianceShares:
    """How the latency varies (`sd_ns`), and whose doing it is: `shares` sum to 1, or are all 0 if nothing varies."""

    sd_ns: float
    shares: Mapping[str, float]
    pairs: tuple[Pair, ...]


def shares(
    total: Ints, parts: Mapping[str, Ints], *, winsorised_at: float = WINSORISED_AT, pairs_max: int = 2
) -> VarianceShares:
    """Each part's share of the variance of `total`, and the pairs of parts with the largest covariances.

    All arrays are [requests], int64 ns; the parts of a request sum to its total. A request beyond the quantile
    `winsorised_at` is scaled down with all its parts, so its parts still sum to it; 1 leaves everything as it is.

    A million requests with 25 parts take 0.5 to 1.3 s.
    """
    names = list(parts)
    cap = quantile(total, winsorised_at)
    scale = np.minimum(cap / np.maximum(total, 1), 1.0)
    # The parts of a part of the requests at a time: all at once, 25 parts of a million requests would be 200 MB.
    chunks = [slice(i, i + _ROWS_AT_ONCE) for i in range(0, len(total), _ROWS_AT_ONCE)]
    mean = sum((_scaled(parts, scale, at).sum(axis=1) for at in chunks), np.zeros(len(names))) / len(total)
    covariance = np.zeros((len(names), len(names)))
    for at in chunks:
        centred = _scaled(parts, scale, at) - mean[:, None]
        covariance += centred @ centred.T
    covariance /= len(total)

    variance = float(covariance.sum())
    if variance <= 0:
        return VarianceShares(0.0, dict.fromkeys(names, 0.0), ())
    sd = np.sqrt(np.diag(covariance))
    pairs = [
        Pair(
            names[a],
            names[b],
            2 * float(covariance[a, b]) / variance,
            float(covariance[a, b] / (sd[a] * sd[b])) if sd[a] > 0 and sd[b] > 0 else 0.0,
        )
        for a, b in combinations(range(len(names)), 2)
    ]
    pairs.sort(key=lambda pair: -abs(pair.share))
    return VarianceShares(
        variance**0.5,
        {name: float(row.sum()) / variance for name, row in zip(names, covariance, strict=True)},
        tuple(pairs[:pairs_max]),
    )


def _scaled(parts: Mapping[str, Ints], scale: Floats, at: slice) -> Floats:
    """Some requests' parts, [parts, requests], after winsorising."""
    return np.stack([part[at] * scale[at] for part in parts.values()])
