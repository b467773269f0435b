"""A series folded at a period: what happens at which phase, and how sharply."""

from dataclasses import dataclass

import numpy as np

from forensics.statistics.robust import Floats, Ints, Mask

PHASES = 24
_CELLS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class Fold:
    """The requests by phase, in equal steps of the period from phase 0 on; all arrays are [phases]."""

    period: float
    requests: Ints
    slow: Ints
    mean_ns: Floats

    @property
    def slow_share(self) -> Floats:
        """The share of slow requests at each phase; 0 where there are none."""
        return self.slow / np.maximum(self.requests, 1)

    def slow_arc(self) -> tuple[int, int]:
        """The slow stretch: its first phase, and how many it takes; it may go round the end.

        Around the slowest phase, as long as the share of slow requests is above the middle between its height and the
        usual one.
        """
        shares = self.slow_share
        count = len(shares)
        peak = int(np.argmax(shares))
        high = shares >= (shares[peak] + np.median(shares)) / 2
        first, length = peak, 1
        while length < count and high[(first - 1) % count]:
            first, length = first - 1, length + 1
        while length < count and high[(first + length) % count]:
            length += 1
        return first % count, length


def fold(position: Floats, latency_ns: Ints, slow: Mask, period: float, *, phases: int = PHASES) -> Fold:
    """Fold requests at `position` (ns, requests or bytes since the beginning) at a period in the same unit."""
    phase = np.minimum((position % period) * (phases / period), phases - 1).astype(np.int64)
    requests = np.bincount(phase, minlength=phases)
    total_ns = np.bincount(phase, latency_ns, minlength=phases)
    return Fold(period, requests, np.bincount(phase[slow], minlength=phases), total_ns / np.maximum(requests, 1))


def sharpness(position: Floats, periods: Floats, phases: int) -> Floats:
    """How unevenly positions lie in each of the periods, folded into so many phases: [periods].

    Chi-squared over the phases, as a z-score. With phases of one width for all, of a period and its multiples and
    fractions the period itself wins: its fold is as uneven as that of a multiple, with fewer phases to be so by chance,
    and it is more uneven than a fraction's.
    """
    expected = len(position) / phases
    chi2 = np.empty(len(periods))
    at_once = max(_CELLS_AT_ONCE // max(len(position), phases), 1)
    for first in range(0, len(periods), at_once):
        some = periods[first : first + at_once]
        turns = position[None, :] / some[:, None]
        phase = ((turns - np.floor(turns)) * phases).astype(np.int64)
        phase += phases * np.arange(len(some))[:, None]
        seen = np.bincount(phase.ravel(), minlength=phases * len(some)).reshape(-1, phases)
        chi2[first : first + at_once] = (seen**2).sum(axis=1) / expected - len(position)
    freedom = phases - 1
    scores: Floats = (chi2 - freedom) / (2 * freedom) ** 0.5
    return scores
