"""Two detectors of level shifts in a short series: they err differently, so what both see is there.

PELT finds the cheapest cut into pieces of constant level (Killick, Fearnhead and Eckley, 2012). It is sharp, but
believes in independent noise; latencies of neighbouring bins are not independent, so each cut must pay more, by what
the noise's autocorrelation is worth. E-divisive compares whole distributions (Matteson and James, 2014) and asks
permutations how far apart chance would drive them. It needs no model, but is less sharp.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from forensics.statistics.robust import Floats, Ints, noise

PIECE_MIN = 4
"""A level holds for at least so many bins; one bin off is an outlier, not a level."""
PERMUTATIONS = 199
ALPHA = 0.01
AGREE_BINS = 4
"""The two detectors mean the same cut if they are this close."""
BLOCK = 5
"""Bins are permuted in blocks: neighbours stay neighbours, so chance gets credit for their likeness."""
_LEVELS = 32


def pelt(series: Floats, *, piece_min: int = PIECE_MIN) -> list[int]:
    """Where new levels begin, as indices of `series` [bins].

    The noise is told by differences, so that the shifts themselves do not count as noise. A cut costs
    2 ln(n) (1 + r) / (1 - r) noise variances, with r the lag-1 correlation: as if there were fewer bins.
    """
    count = len(series)
    sd, r = noise(series)
    if count < 2 * piece_min or sd == 0:
        return []
    scaled = (series - np.median(series)) / sd
    sums = np.concatenate([[0.0], np.cumsum(scaled)])
    squares = np.concatenate([[0.0], np.cumsum(scaled**2)])
    penalty = 2 * np.log(count) * (1 + r) / (1 - r)

    best = np.full(count + 1, np.inf)
    best[0] = -penalty
    cut = np.zeros(count + 1, dtype=np.int64)
    open_cuts = np.zeros(0, dtype=np.int64)
    open_until = np.zeros(0, dtype=np.int64)
    for end in range(piece_min, count + 1):
        if np.isfinite(best[end - piece_min]):
            open_cuts, open_until = np.append(open_cuts, end - piece_min), np.append(open_until, count + 1)
        step = sums[end] - sums[open_cuts]
        costs = best[open_cuts] + squares[end] - squares[open_cuts] - step * step / (end - open_cuts)
        least = int(np.argmin(costs))
        best[end], cut[end] = costs[least] + penalty, open_cuts[least]
        # Who costs more than a cut here never wins again: whatever comes is at least as dear with the older start. But
        # a piece that begins here must first be long enough.
        open_until[costs >= best[end]] = np.minimum(open_until[costs >= best[end]], end + piece_min)
        still = open_until > end + 1
        open_cuts, open_until = open_cuts[still], open_until[still]
    starts = []
    at = count
    while (at := int(cut[at])) > 0:
        starts.append(at)
    return starts[::-1]


class Split(NamedTuple):
    """Where a piece parts into two distributions best, and the probability that chance parts one as far.

    `beside` is how far the two are apart in units of what chance does on average.
    """

    at: int
    p_value: float
    beside: float


def e_divisive(series: Floats, *, piece_min: int = PIECE_MIN, alpha: float = ALPHA, seed: int = 0) -> Split | None:
    """The best split of a series [bins] in two, by the energy distance; None if there is nothing to split.

    In one dimension this distance is twice the integral of the squared difference of the distribution functions
    (Szekely and Rizzo), which costs n x levels, not n^2: 199 permutations of 150 bins take 8 ms. A p-value above
    `alpha` is a rough one: no more is asked then.
    """
    count = len(series)
    if count < 2 * piece_min:
        return None
    levels = np.unique(np.quantile(series, np.linspace(0, 1, min(_LEVELS, count)), method="nearest"))
    if len(levels) < 2:
        return None
    # Row i: in which of the levels bin i is, centred, and weighted by the root of each level's width.
    below = series[:, None] <= levels[None, :-1]
    walk = ((below - below.mean(axis=0)) * np.sqrt(np.diff(levels))).astype(np.float32)
    at, distance = _farthest(walk[None], piece_min)

    rng = np.random.default_rng(seed)
    chance: list[float] = []
    while len(chance) < PERMUTATIONS:
        # Blocks, but enough of them to be shuffled in many ways.
        orders = block_orders(count, min(BLOCK, max(count // 15, 1)), min(20, PERMUTATIONS - len(chance)), rng)
        chance += _farthest(walk[orders], piece_min)[1].tolist()
        if _share_at_least(chance, float(distance[0])) > alpha * (PERMUTATIONS + 1) / (len(chance) + 1):
            break
    return Split(
        int(at[0]), _share_at_least(chance, float(distance[0])), float(distance[0]) / max(float(np.mean(chance)), 1e-30)
    )


def confirmed(series: Floats, cuts: Sequence[int], *, alpha: float = ALPHA, seed: int = 0) -> list[int]:
    """Of these cuts of a series [bins], those that e-divisive makes too, between the cuts on both sides.

    As long as there are others, the worst is given up and its neighbours are asked again, now with longer pieces. So an
    episode is not lost, as it is if e-divisive begins with the whole series: a minute of five is no good split of it.
    """
    kept = list(cuts)
    asked: dict[tuple[int, int, int], Split | None] = {}
    while kept:
        doubtful = []
        for around in zip([0, *kept[:-1]], kept, [*kept[1:], len(series)], strict=True):
            first, cut, last = around
            if around not in asked:
                asked[around] = e_divisive(series[first:last], alpha=alpha, seed=seed)
            split = asked[around]
            if split is None or split.p_value > alpha or abs(first + split.at - cut) > AGREE_BINS:
                doubtful.append((split.beside if split is not None and split.p_value > alpha else 0.0, cut))
        if not doubtful:
            break
        kept.remove(min(doubtful)[1])
    return kept


def _share_at_least(chance: Sequence[float], value: float) -> float:
    return (1 + sum(c >= value for c in chance)) / (len(chance) + 1)


def block_orders(count: int, block: int, orders: int, rng: np.random.Generator) -> Ints:
    """Random orders of the items 0 .. count - 1 in which blocks of neighbours stay together, [orders, count]."""
    blocks = -(-count // block)
    shuffled = rng.permuted(np.tile(np.arange(blocks), (orders, 1)), axis=1)
    items = (shuffled[:, :, None] * block + np.arange(block)).reshape(orders, -1)
    # The last block may be cut short; each order has the same number of items too many.
    return items[items < count].reshape(orders, count)


def _farthest(walks: Floats, piece_min: int) -> tuple[Floats, Floats]:
    """Of each walk [orders, bins, levels]: where the two sides differ most, and how much."""
    count = walks.shape[1]
    heaped = np.cumsum(walks, axis=1)
    # Only splits with enough bins on both sides.
    heaped = heaped[:, piece_min - 1 : count - piece_min]
    left = np.arange(piece_min, count - piece_min + 1)
    distance = np.einsum("osl,osl->os", heaped, heaped) * (2 * count / (left * (count - left)))
    return left[np.argmax(distance, axis=1)], distance.max(axis=1)
