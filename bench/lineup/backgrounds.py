"""The ordinary life in which a fault happens: which model, how much traffic of which kind, how many workers."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bench.arrivals import Arrivals
from bench.lineup.sizes import Constant, LogNormal, Mix


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """How the model computes. Times are those of a core of its own, whatever the machine: see `calibration.py`.

    A pass takes `fixed_ms` and `token_us` for every token computed. `kind`: packed (no padding), padded, or conv.
    """

    kind: str = "packed"
    fixed_ms: float = 3.0
    token_us: float = 80.0
    tokens_max: int = 4096
    """Longer requests are cut off."""
    rows_max: int = 16
    linger_ms: float = 0.0
    warm_up_rows: int = 8
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What only some scenario's own model knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    """A system at work. `burst_mean` is the mean size of a burst where arrivals are bursty."""

    name: str
    mix: Mix
    rate_per_s: float
    arrivals: Arrivals = Arrivals.POISSON
    burst_mean: float = 4.0
    workers: int = 1
    threads: int = 1
    model: ModelOptions = field(default_factory=ModelOptions)
    slack: float = 0.15
    """By how much, as a share, rate and lengths may vary where a set asks for it."""

    def varied(self, rng: random.Random) -> "Background":
        """The same with another rate and other lengths, within the slack."""
        rate, length = (1 + rng.uniform(-self.slack, self.slack) for _ in range(2))
        return replace(self, rate_per_s=self.rate_per_s * rate, mix=self.mix.scaled(length))


TEXTS = Background(
    name="texts",
    mix=LogNormal(median=32, sigma=0.8, most=400),
    rate_per_s=35,
    model=ModelOptions(fixed_ms=3.0, token_us=90.0),
)
"""One worker, texts of varied length, packed without padding."""

ROWS = Background(
    name="rows",
    mix=Constant(32),
    rate_per_s=60,
    workers=2,
    model=ModelOptions(kind="padded", fixed_ms=5.0, token_us=60.0),
)
"""Two workers, requests that are all alike."""

SIGNALS = Background(
    name="signals",
    mix=LogNormal(median=48, sigma=0.3, most=200),
    rate_per_s=40,
    arrivals=Arrivals.BURSTY,
    burst_mean=2.0,
    workers=2,
    model=ModelOptions(kind="conv", fixed_ms=2.0, token_us=80.0),
)
"""A convolution, in small bursts. Not in the development set."""
