"""Did it hurt? The tail while the fault lasted against the tail before, with an honest interval. Pure numpy.

Latencies of neighbours are alike, so the interval is of a bootstrap over blocks of time: one over requests would be far
too sure. A fault that does not raise its figure by a fifth, or whose lower bound is not above nothing, moved nothing
that a user sees: there is nothing to be diagnosed.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

RISE_MIN = 0.2
BLOCK_US = 1_000_000
RESAMPLES = 400
LOWER = 0.05
COUNT_MIN = 30

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rise:
    """A quantile before and during, ms; `lower_ms` is the lower end of the interval of their difference."""

    figure: str
    before_ms: float
    during_ms: float
    lower_ms: float
    count_before: int
    count_during: int
    is_real: bool

    @property
    def by_ms(self) -> float:
        """How much it rose."""
        return self.during_ms - self.before_ms

    def to_json(self) -> dict[str, Any]:
        """As a value ready for JSON."""
        return asdict(self)


def rise(
    at_us: Sequence[int], latency_ms: Sequence[float], *, before: tuple[int, int], during: tuple[int, int],
    figure: str, seed: int = 0,
) -> Rise:  # fmt: skip
    """Compare the requests that began in two windows [from, to), us; `figure` is p50 or p99.

    What was under way when the first window ended belongs to neither.
    """
    at, ms = np.asarray(at_us, np.int64), np.asarray(latency_ms, np.float64)
    kept = (at >= before[1]) | (at + ms * 1000 < before[1])
    at, ms = at[kept], ms[kept]
    quantile = {"p50": 0.5, "p99": 0.99}[figure]
    rng = np.random.default_rng(seed)
    sides = [_blocks(at, ms, window) for window in (before, during)]
    counts = [sum(map(len, blocks)) for blocks in sides]
    if min(counts) < COUNT_MIN:
        return Rise(figure, 0.0, 0.0, 0.0, counts[0], counts[1], is_real=False)
    values = [float(np.quantile(np.concatenate(blocks), quantile)) for blocks in sides]
    differences = []
    for _ in range(RESAMPLES):
        drawn = [np.concatenate([blocks[i] for i in rng.integers(0, len(blocks), len(blocks))]) for blocks in sides]
        differences.append(np.quantile(drawn[1], quantile) - np.quantile(drawn[0], quantile))
    lower = float(np.quantile(differences, LOWER))
    is_real = values[1] >= (1 + RISE_MIN) * values[0] and lower > 0
    return Rise(figure, values[0], values[1], lower, counts[0], counts[1], is_real=bool(is_real))


def _blocks(at: Ints, ms: Floats, window: tuple[int, int]) -> list[Floats]:
    """The latencies of a window, block of time by block of time; blocks without requests are left out."""
    inside = (at >= window[0]) & (at < window[1])
    number = (at[inside] - window[0]) // BLOCK_US
    return [ms[inside][number == n] for n in np.unique(number)]
