"""How far two hosts' clocks are apart, bounded by a linear programme; never a guess, never moved in silence.

Theory of operation. No request reaches a worker before it was sent, no answer the gateway before it left the worker. So
each round trip bounds the offset (worker's clock - gateway's clock): from above at g3, by w1 - g3, and from below at
g5, by w8 - g5. Clocks also drift, so within a block of a minute the offset is taken for a line a + b t with |b| at most
DRIFT_MAX_PPM. The lines that no round trip contradicts are a polygon in the plane of (b, a): a linear programme in two
variables, whose corners are found exactly, by clipping with fractions. The bounds at an instant are the least and the
greatest value of these lines there. The greatest is convex in time, the least concave, so over a stretch of time the
bounds are those at its ends.

When no line is left the clocks have stepped, or changed their rate within the block: the block is cut there, and the
cut is a finding (`Contradiction`). What bounds there are for an instant in such a cut is for its own request to say.

Blocks and buckets lie on a fixed grid of the gateway's clock, and of each bucket only the tightest bounds are kept. So
whoever reads the minute around a request comes to the same bounds as whoever reads a day.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import NamedTuple

BLOCK_NS = 60_000_000_000
"""So long the drift between two clocks is taken for constant: crystals change it by less than 1 ppm meanwhile."""
BUCKET_NS = 100_000_000
"""Bounds are given for stretches of this length."""
DRIFT_MAX_PPM = 1_000
"""The kernel slews a clock by at most 500 ppm, and there are two. A time service that corrects a large error may go
faster for a while: then no line fits, and that is told."""
FIT_MIN = 8
"""A block with fewer round trips is said to be bounded by causality alone."""
TOLD_NEAR_NS = 20_000_000_000
"""Bounds that a gateway logged (every 10 s) are used no farther from their moment."""


class OffsetSource(StrEnum):
    """How the offset between two clocks is known."""

    SAME_CLOCK = "same clock"
    ROUND_TRIPS = "round trips"
    CAUSALITY = "causality"


@dataclass(frozen=True, slots=True)
class Offset:
    """Bounds of worker's clock - gateway's clock, in ns."""

    lo_ns: int
    hi_ns: int
    source: OffsetSource

    @property
    def middle_ns(self) -> int:
        """The best guess."""
        return (self.lo_ns + self.hi_ns) // 2


SAME = Offset(0, 0, OffsetSource.SAME_CLOCK)


class Pair(NamedTuple):
    """Two clocks by name."""

    gateway_clock: str
    worker_clock: str


class Bound(NamedTuple):
    """A bound of the offset (ns) at an instant of the gateway's clock."""

    ns: int
    at_ns: int


class Told(NamedTuple):
    """Bounds that a gateway logged at `at_ns`, from its last `n` round trips."""

    at_ns: int
    lo_ns: int
    hi_ns: int
    n: int


class Contradiction(NamedTuple):
    """No steady drift explains the round trips around `at_ns` (gateway's clock).

    The offset jumped by at least `by_ns` there; 0 when only its rate changed.
    """

    pair: Pair
    at_ns: int
    by_ns: int


class Impossible(NamedTuple):
    """Round trips of a pair that contradict themselves: longer inside the worker than for the gateway, by up to
    `by_ns`."""

    pair: Pair
    requests: int
    by_ns: int


@dataclass(slots=True)
class Block:
    """The tightest bounds of a minute, a bucket at a time; `requests` were answered in it."""

    requests: int = 0
    lows: dict[int, Bound] = field(default_factory=dict)
    highs: dict[int, Bound] = field(default_factory=dict)

    def narrow(self, low: Bound | None, high: Bound | None, requests: int) -> None:
        """Take in bounds of round trips that were answered in this block."""
        self.requests += requests
        if low is not None:
            at = low.at_ns // BUCKET_NS
            self.lows[at] = max(low, self.lows.get(at, low))
        if high is not None:
            at = high.at_ns // BUCKET_NS
            self.highs[at] = min(high, self.highs.get(at, high))


class Band:
    """The lines that no round trip of a stretch contradicts, by the corners of their polygon."""

    def __init__(self, origin_ns: int, base_ns: int, corners: Sequence[tuple[Fraction, Fraction]]) -> None:
        self._origin_ns, self._base_ns = origin_ns, base_ns
        # value = (a + b t) / d, in integers alone.
        self._corners = [
            (a.numerator * b.denominator, b.numerator * a.denominator, a.denominator * b.denominator)
            for b, a in corners
        ]

    def over(self, from_ns: int, to_ns: int) -> tuple[int, int]:
        """The bounds of the offset over a stretch of the gateway's clock, in ns, rounded outwards."""
        ends = (from_ns - self._origin_ns, to_ns - self._origin_ns)
        lo = min((a + b * t) // d for a, b, d in self._corners for t in ends)
        hi = max(-(-(a + b * t) // d) for a, b, d in self._corners for t in ends)
        return lo + self._base_ns, hi + self._base_ns


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a block that one band explains; between `first_ns` and `last_ns` are its bounds."""

    first_ns: int
    last_ns: int
    band: Band


class Offsets:
    """The offsets between clocks, by what was noted. Note everything first, then ask."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[Pair, int], Block] = {}
        self._stretches: dict[tuple[Pair, int], list[Stretch]] = {}
        self._told: dict[Pair, list[Told]] = {}
        self._impossible: dict[Pair, Impossible] = {}

    def round_trip(self, pair: Pair, g3: int, g5: int, w1: int, w8: int) -> None:
        """Note an answered request that crossed from one clock to the other and back."""
        beyond_ns = (w8 - w1) - (g5 - g3) - allowance_ns(g5 - g3)
        if beyond_ns > 0:
            self.impossible(Impossible(pair, 1, beyond_ns))
            return
        self.narrow(pair, g5 // BLOCK_NS, Bound(w8 - g5, g5), Bound(w1 - g3, g3), requests=1)

    def narrow(self, pair: Pair, block: int, low: Bound | None, high: Bound | None, *, requests: int) -> None:
        """Note bounds of `requests` round trips that were answered in this block."""
        self._blocks.setdefault((pair, block), Block()).narrow(low, high, requests)

    def impossible(self, found: Impossible) -> None:
        """Note round trips that contradict themselves, which therefore bound nothing."""
        known = self._impossible.get(found.pair, Impossible(found.pair, 0, 0))
        self._impossible[found.pair] = Impossible(
            found.pair, known.requests + found.requests, max(known.by_ns, found.by_ns)
        )

    def told(self, pair: Pair, told: Told) -> None:
        """Note bounds that a gateway logged."""
        if told.n > 0 and told.lo_ns <= told.hi_ns:
            self._told.setdefault(pair, []).append(told)

    def at(self, pair: Pair, at_ns: int) -> Offset | None:
        """The offset around an instant of the gateway's clock; None when nothing tells."""
        if pair.gateway_clock and pair.gateway_clock == pair.worker_clock:
            return SAME
        bucket = at_ns // BUCKET_NS
        from_ns, to_ns = bucket * BUCKET_NS, (bucket + 1) * BUCKET_NS
        key = (pair, at_ns // BLOCK_NS)
        block = self._blocks.get(key)
        fitted = next(
            (
                s.band.over(from_ns, to_ns)
                for s in self._stretches_of(key)
                if s.first_ns < to_ns and from_ns <= s.last_ns
            ),
            None,
        )
        known = block.requests if block is not None else 0
        told = min(self._told.get(pair, ()), key=lambda t: abs(t.at_ns - from_ns), default=None)
        if told is not None and abs(told.at_ns - from_ns) <= TOLD_NEAR_NS and told.n > known:
            # The gateway knew of more round trips than there are lines.
            lo, hi = fitted or (told.lo_ns, told.hi_ns)
            if max(lo, told.lo_ns) <= min(hi, told.hi_ns):
                return Offset(max(lo, told.lo_ns), min(hi, told.hi_ns), OffsetSource.ROUND_TRIPS)
        if fitted is None:
            return None
        return Offset(*fitted, OffsetSource.ROUND_TRIPS if known >= FIT_MIN else OffsetSource.CAUSALITY)

    def buckets(self) -> Iterator[tuple[Pair, int, Offset]]:
        """Every bucket in which a round trip ended, with the offset there; those that nothing bounds are left out."""
        for (pair, _), block in self._blocks.items():
            for bucket in block.lows:
                if (offset := self.at(pair, bucket * BUCKET_NS)) is not None:
                    yield pair, bucket, offset

    def contradictions(self) -> list[Contradiction]:
        """Where no steady drift explains the round trips."""
        found = []
        last: tuple[Pair, Stretch] | None = None
        for key in sorted(self._blocks):
            for i, stretch in enumerate(self._stretches_of(key)):
                if last is not None and last[0] == key[0]:
                    by_ns = _jump_ns(last[1], stretch)
                    # Within a block a cut is one whatever its size: no line explains both sides.
                    if by_ns > 0 or i:
                        found.append(Contradiction(key[0], stretch.first_ns, max(0, by_ns)))
                last = key[0], stretch
        return found

    def impossibilities(self) -> list[Impossible]:
        """Pairs with round trips that contradict themselves."""
        return [self._impossible[pair] for pair in sorted(self._impossible)]

    def _stretches_of(self, key: tuple[Pair, int]) -> list[Stretch]:
        if key not in self._stretches:
            block = self._blocks.get(key)
            self._stretches[key] = [] if block is None else fit(block)
        return self._stretches[key]


def _jump_ns(before: Stretch, after: Stretch) -> int:
    """So far the bounds of two stretches lie apart beyond what drift explains; negative when they do not."""
    lo, hi = before.band.over(before.last_ns, before.last_ns)
    lo_then, hi_then = after.band.over(after.first_ns, after.first_ns)
    return max(lo_then - hi, lo - hi_then) - allowance_ns(after.first_ns - before.last_ns)


def allowance_ns(over_ns: int) -> int:
    """So far two clocks may drift apart in this time."""
    return (abs(over_ns) * DRIFT_MAX_PPM + 999_999) // 1_000_000


def fit(block: Block) -> list[Stretch]:
    """The stretches of a block, each with the lines that fit it: one stretch, unless its bounds contradict each
    other."""
    lows, highs = sorted(block.lows.values(), key=_when), sorted(block.highs.values(), key=_when)
    origin_ns, base_ns = min(lows[0].at_ns, highs[0].at_ns), lows[0].ns
    reach = max(abs(bound.ns - base_ns) for bound in (*lows, *highs)) + allowance_ns(2 * BLOCK_NS) + 1
    cuts = [_Cut(bound, -1) for bound in _hull(lows, 1)] + [_Cut(bound, 1) for bound in _hull(highs, -1)]
    polygon = _box(reach)
    for cut in cuts:
        polygon = cut.clip(polygon, origin_ns, base_ns)
    if polygon:
        first_ns, last_ns = origin_ns, max(lows[-1].at_ns, highs[-1].at_ns)
        return [Stretch(first_ns, last_ns, Band(origin_ns, base_ns, polygon))]
    return _pieces([*(_Cut(b, -1) for b in lows), *(_Cut(b, 1) for b in highs)], origin_ns, base_ns, reach)


def _when(bound: Bound) -> int:
    return bound.at_ns


class _Cut(NamedTuple):
    """A half of the plane of (b, a): the lines not above a high bound (side 1), or not below a low one (side -1)."""

    bound: Bound
    side: int

    def clip(self, polygon: "_Polygon", origin_ns: int, base_ns: int) -> "_Polygon":
        """What is left of a convex polygon; empty when nothing is."""
        at, ns = self.bound.at_ns - origin_ns, self.bound.ns - base_ns
        left: _Polygon = []
        beyond = [self.side * (a + b * at - ns) for b, a in polygon]
        for i, (corner, over) in enumerate(zip(polygon, beyond, strict=True)):
            before, over_before = polygon[i - 1], beyond[i - 1]
            if (over > 0) != (over_before > 0):
                share = over_before / (over_before - over)
                left.append((before[0] + share * (corner[0] - before[0]), before[1] + share * (corner[1] - before[1])))
            if over <= 0:
                left.append(corner)
        return left


_Polygon = list[tuple[Fraction, Fraction]]


def _box(reach: int) -> _Polygon:
    """All lines that could matter: |b| within the drift allowed, |a| within `reach`."""
    b, a = Fraction(DRIFT_MAX_PPM, 1_000_000), Fraction(reach)
    return [(-b, -a), (b, -a), (b, a), (-b, a)]


def _hull(bounds: Iterable[Bound], side: int) -> list[Bound]:
    """Of low bounds (side 1) the upper hull, of high ones (side -1) the lower: only these can stop a line."""
    kept: list[Bound] = []
    for c in bounds:
        while len(kept) > 1:
            a, b = kept[-2:]
            if side * ((b.ns - a.ns) * (c.at_ns - a.at_ns) - (c.ns - a.ns) * (b.at_ns - a.at_ns)) > 0:
                break
            kept.pop()
        kept.append(c)
    return kept


def _pieces(cuts: list[_Cut], origin_ns: int, base_ns: int, reach: int) -> list[Stretch]:
    """Cut a block that no line explains: each stretch is as long as one line explains it."""
    found: list[Stretch] = []
    polygon: _Polygon = []
    first_ns = last_ns = 0
    for cut in sorted(cuts, key=lambda c: c.bound.at_ns):
        left = cut.clip(polygon, origin_ns, base_ns)
        if not left:
            if polygon:
                found.append(Stretch(first_ns, last_ns, Band(origin_ns, base_ns, polygon)))
            left, first_ns = cut.clip(_box(reach), origin_ns, base_ns), cut.bound.at_ns
        polygon, last_ns = left, cut.bound.at_ns
    return [*found, Stretch(first_ns, last_ns, Band(origin_ns, base_ns, polygon))]
