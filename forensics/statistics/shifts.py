"""Two detectors of level shifts in a short series: they err differently, so what both see is there.

PELT finds the cheapest cut into pieces of constant level (Killick, Fearnhead and Eckley, 2012). It is sharp, but
believes in independent noise; latencies of neighbouring bins are not independent, so each cut must pay more, by what
the noise's autocorrelation is worth. E-divisive compares whole distributions (Matteson and James, 2014) and asks
permutations how far apart chance would drive them. It needs no model, but is less sharp.
"""

import numpy as np

from forensics.statistics.robust import Floats, Ints, noise

PIECE_MIN = 4
"""A level holds for at least so many bins; one bin off is an outlier, not a level."""
PERMUTATIONS = 199
ALPHA = 0.01
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
        # Who costs more than a cut here never wins again: whatever comes is at least as dear with the older start.
        # But a
        # piece that begins here must first be long enough.
        open_until[costs >= best[end]] = np.minimum(open_until[costs >= best[end]], end + piece_min)
        still = open_until > end + 1
        open_cuts, open_until = open_cuts[still], open_until[still]
    starts = []
    at = count
    while (at := int(cut[at])) > 0:
        starts.append(at)
    return starts[::-1]


def e_divisive(series: Floats, *, piece_min: int = PIECE_MIN, alpha: float = ALPHA, seed: int = 0) -> list[int]:
    """Where the distribution changes, as indices of `series` [bins]: cut in two where it differs most, and again.

    In one dimension the energy distance is twice the integral of the squared difference of the distribution functions
    (Szekely and Rizzo), which costs n x levels, not n^2: 199 permutations of 150 bins take 20 ms.
    """
    rng = np.random.default_rng(seed)
    starts = []
    pieces = [(0, len(series))]
    while pieces:
        first, last = pieces.pop()
        at = _split(series[first:last], piece_min, alpha, rng)
        if at is not None:
            starts.append(first + at)
            pieces += [(first, first + at), (first + at, last)]
    return sorted(starts)


def _split(series: Floats, piece_min: int, alpha: float, rng: np.random.Generator) -> int | None:
    """Where a piece parts into two distributions, if it does."""
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

    as_far = 0
    for done in range(0, PERMUTATIONS, 20):
        orders = block_orders(count, min(BLOCK, max(count // 10, 1)), min(20, PERMUTATIONS - done), rng)
        as_far += int(np.sum(_farthest(walk[orders], piece_min)[1] >= distance))
        if (1 + as_far) / (PERMUTATIONS + 1) > alpha:
            return None  # no need to ask the rest
    return int(at[0])


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
