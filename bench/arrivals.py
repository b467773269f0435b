"""When requests are due: pure schedules, the same for the same seed.

Each yields ns from the beginning, ascending, below `duration_ns`.
"""

import math
import random
from collections.abc import Iterator
from enum import StrEnum


class Arrivals(StrEnum):
    """How requests come when nobody waits for the answer of another."""

    POISSON = "poisson"
    BURSTY = "bursty"
    UNIFORM = "uniform"


def schedule(arrivals: Arrivals, *, rate_per_s: float, duration_ns: int, burst_mean: float, seed: int) -> Iterator[int]:
    """The instants of one run: `rate_per_s` requests a second on average.

    `burst_mean` is how many come at once on average when they are bursty.
    """
    rng = random.Random(seed)
    mean_ns = 1e9 / rate_per_s
    match arrivals:
        case Arrivals.UNIFORM:
            return uniform(mean_ns, duration_ns)
        case Arrivals.POISSON:
            return poisson(mean_ns, duration_ns, rng)
        case Arrivals.BURSTY:
            return bursty(mean_ns, duration_ns, burst_mean, rng)


def uniform(mean_ns: float, duration_ns: int) -> Iterator[int]:
    """One request every `mean_ns`, like a clock."""
    # A product each and no sum, so that rounding does not add up.
    i = 0
    while (at_ns := round(i * mean_ns)) < duration_ns:
        yield at_ns
        i += 1


def poisson(mean_ns: float, duration_ns: int, rng: random.Random) -> Iterator[int]:
    """Requests of many clients that know nothing of each other: exponential gaps."""
    at_ns = 0.0
    while (at_ns := at_ns + rng.expovariate(1 / mean_ns)) < duration_ns:
        yield int(at_ns)


def bursty(mean_ns: float, duration_ns: int, burst_mean: float, rng: random.Random) -> Iterator[int]:
    """Bursts: they begin at random like `poisson`, each has a geometric number of requests at one instant.

    Over any longer time their number varies 2 `burst_mean` - 1 times as much as with `poisson` (variance; a compound
    Poisson process).
    """
    for at_ns in poisson(mean_ns * burst_mean, duration_ns, rng):
        for _ in range(_geometric(burst_mean, rng)):
            yield at_ns


def _geometric(mean: float, rng: random.Random) -> int:
    """1, 2, 3 ... with this mean."""
    if mean <= 1:
        return 1
    return 1 + math.floor(math.log(1 - rng.random()) / math.log(1 - 1 / mean))
