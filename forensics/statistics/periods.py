"""Does it come back? Slow requests that return with the clock, with every so-maniest request, or with so many bytes.

Theory of operation. Requests are put into bins of a clock; each bin gives how many more are slow than its share
allows. If slowness returns, this series is like itself one period later: its autocorrelation has a peak. How high a
peak is by chance is asked of orders in which blocks of bins are shuffled. The peak tells the period to a bin, and up to
a multiple. Folding decides: the period at which the slow requests lie most unevenly over the phases.

Three clocks are tried, for they name the mechanism: a cron job returns with the time, a collection of garbage with the
number of requests, a rotated log with the bytes. Arrivals are uneven, so in the wrong clock the fold smears.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from forensics.statistics.binning import in_order
from forensics.statistics.folding import fold, sharpness
from forensics.statistics.robust import Floats, Ints, Mask, quantile
from forensics.statistics.shifts import block_orders

SLOW_P = 0.98
"""Slow is who took longer than this quantile."""
WIDTH_NS = 1_000_000_000
"""The width of a bin of time; other clocks get as many bins. Each clock is also tried with bins a quarter as wide."""
BINS_MAX = 8192
BLOCK = 5
"""Blocks of so many bins are shuffled, and no period is shorter: about a second, with the fine bins."""
CYCLES_MIN = 3
ORDERS = 60
P_MAX = 0.005
REQUESTS_MIN = 200
_SLOW_MAX = 5_000
_FRACTIONS = 12
"""The first high peak may be that of so long a multiple: where each stall makes few slow, its own peak is low."""
_FOOT = 0.2
"""A period has a peak of at least so much of the highest."""
_SCALES = ((1, BLOCK), (4, 2 * BLOCK))
"""How many times finer the bins are, and how many stay together in a shuffled order."""
_CAP = 6.0
"""No bin counts as more than so many standard deviations: otherwise one outage is all that the series is about."""


class Clock(StrEnum):
    """What slowness may return with."""

    TIME = "time"
    REQUESTS = "requests"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Period:
    """Slowness returns every `period`: ns, requests or bytes, by `clock`.

    `phase` is where the first slow stretch begins, counted from the first request, 0 <= phase < period; `duty` is the
    share of the period that is slow. `amplitude_ns` is the mean latency there less the mean of the rest. `cycles` is
    how often the period fits into what was watched.
    """

    clock: Clock
    period: float
    phase: float
    duty: float
    amplitude_ns: float
    p_value: float
    cycles: float


class _Found(NamedTuple):
    clock: Clock
    position: Floats
    period: float
    p_value: float
    sharpness: float


def find_period(
    at_ns: Ints,
    latency_ns: Ints,
    size_bytes: Ints | None = None,
    *,
    slow_p: float = SLOW_P,
    width_ns: int = WIDTH_NS,
    seed: int = 0,
) -> Period | None:
    """The period of slow requests, by the clock that shows it most sharply, or None.

    `at_ns` are arrivals; all arrays are [requests]. Without `size_bytes` there is no clock of bytes. A period is at
    least 5 of the fine bins (1.25 s in a log of up to two hours) and at most a third of the log.

    Measured on a single server with 15 requests/s over ten minutes, 100 runs each (not the tests'): stalls every 60 s
    of 0.6 s, 37 s of 0.6 s, 45 s of 1 s, 3 s of 0.2 s, 1.5 s of 0.2 s, and every 200, 500 and 900 requests were
    found in 99 or 100, with the right clock and period (not a multiple of it); 12 s of 0.15 s with 0.3 s of jitter in
    96, in five minutes in 75. Times were off by 0.04 s or less in the median. A period where none was: in 2 of 400 runs
    that were clean, at load 0.7, or had 15 stalls at random; in 5 of 200 with a step of latency. A million requests
    take 0.6 s at most, 10,000 take 0.03 s.
    """
    at_ns, latency_ns, *sizes = in_order(at_ns, latency_ns, *([] if size_bytes is None else [size_bytes]))
    if len(at_ns) < REQUESTS_MIN:
        return None
    slow = latency_ns > quantile(latency_ns, slow_p)
    if not slow.any() or at_ns[0] == at_ns[-1]:
        return None
    bins = int(np.clip((at_ns[-1] - at_ns[0]) // width_ns, 2 * CYCLES_MIN * BLOCK, BINS_MAX))
    tried = list(clocks(at_ns, *sizes))
    found = [
        seen
        for clock, position in tried
        if (seen := _by_clock(clock, position, slow, bins, len(tried) * len(_SCALES), seed)) is not None
    ]
    if not found:
        return None
    best = max(found, key=lambda seen: seen.sharpness)
    return _described(best, latency_ns, slow)


def clocks(at_ns: Ints, size_bytes: Ints | None = None) -> Iterator[tuple[Clock, Floats]]:
    """Each clock with what it showed when each request came, from 0, [requests]. `at_ns` is sorted."""
    yield Clock.TIME, (at_ns - at_ns[0]).astype(np.float64)
    yield Clock.REQUESTS, np.arange(len(at_ns), dtype=np.float64)
    if size_bytes is not None and np.any(size_bytes > 0):
        yield Clock.BYTES, np.cumsum(size_bytes, dtype=np.float64) - size_bytes


def _by_clock(clock: Clock, position: Floats, slow: Mask, bins: int, tests: int, seed: int) -> _Found | None:
    """The period in one clock, with bins of both widths; `tests` are how many are made in all."""
    span = float(position[-1]) * (1 + 1e-12) + 1e-9
    slow_position = position[slow]
    if len(slow_position) > _SLOW_MAX:
        slow_position = np.random.default_rng(seed).choice(slow_position, _SLOW_MAX, replace=False)
    found = []
    for finer, block in _SCALES:
        series = _slow_excess(position, slow, span, bins * finer)
        peaks = _peaks(series[None])[0]
        p_value = tests * _by_chance(series, float(peaks.max()), block, np.random.default_rng(seed))
        if p_value <= P_MAX:
            period, sharp = _fundamental(slow_position, peaks, span / (bins * finer), span)
            found.append(_Found(clock, position, period, p_value, sharp))
    return max(found, key=lambda seen: seen.sharpness, default=None)


def _slow_excess(position: Floats, slow: Mask, span: float, bins: int) -> Floats:
    """How many more of each bin's requests are slow than usual, in standard deviations, capped, around 0, [bins]."""
    at = (position * (bins / span)).astype(np.int64)
    count = np.bincount(at, minlength=bins)
    share = slow.mean()
    excess = (np.bincount(at[slow], minlength=bins) - count * share) / np.sqrt(np.maximum(count, 1) * share)
    capped: Floats = np.minimum(excess, _CAP)
    return capped - np.mean(capped)


def _by_chance(series: Floats, height: float, block: int, rng: np.random.Generator) -> float:
    """How probable a peak as high is by chance: by a Gumbel distribution, as of any maximum, over shuffled orders."""
    heights = []
    at_once = max((1 << 17) // len(series), 4)  # as many orders as fit the cache
    for done in range(0, ORDERS, at_once):
        orders = block_orders(len(series), block, min(at_once, ORDERS - done), rng)
        heights.append(_peaks(series[orders]).max(axis=1))
    highest = np.concatenate(heights)
    scale = float(np.std(highest, ddof=1)) * 6**0.5 / np.pi
    if scale == 0:
        return 1.0
    mode = float(np.mean(highest)) - np.euler_gamma * scale
    return float(-np.expm1(-np.exp(-(height - mode) / scale)))


def _peaks(series: Floats) -> Floats:
    """How far the autocorrelation at each lag rises above that of the lags around it, [orders, lags].

    Around are the lags from half to one and a half times as long: one cycle, if the lag is a period. A series with a
    trend or a step is like itself at every lag; only one that returns has peaks. -1 where no period may be.
    """
    bins = series.shape[-1]
    longest = bins // CYCLES_MIN
    size = 1 << (bins + 3 * longest // 2 + 1).bit_length()
    power = np.abs(np.fft.rfft(series, size)) ** 2
    correlation: Floats = np.fft.irfft(power, size)[:, : 3 * longest // 2 + 1]
    correlation /= np.maximum(correlation[:, :1], 1e-12)
    lags = np.arange(BLOCK, longest + 1)
    heaped = np.cumsum(correlation, axis=1)
    first, last = lags // 2, 3 * lags // 2
    peaks = np.full((len(series), longest + 1), -1.0)
    peaks[:, BLOCK:] = correlation[:, lags] - (heaped[:, last] - heaped[:, first]) / (last - first)
    return peaks


def _fundamental(slow: Floats, peaks: Floats, width: float, span: float) -> tuple[float, float]:
    """The period of slow requests, and how sharply it folds.

    The first high peak may be that of a fraction or a multiple by luck; their folds decide among those with a peak.
    Stalls every 1.5 s in five minutes: the right period in 97 of 100 runs, and with 3 fractions in 72.
    """
    foot = int(np.argmax(peaks >= 0.7 * peaks.max()))
    first = foot + int(np.argmax(peaks[foot : foot * 4 // 3 + 1]))
    best = (first * width, -np.inf)
    for factor in (*(1 / k for k in range(_FRACTIONS, 0, -1)), 2, 3):
        lag = first * factor
        around = peaks[max(int(lag) - 1, BLOCK) : int(lag) + 3]
        if len(around) == 0 or lag < BLOCK or around.max() < _FOOT * peaks.max():
            continue
        period, phases = lag * width, max(round(lag), 3)
        # From one trial to the next, the last cycle moves by a bin; then around the best by a tenth.
        for reach, move in ((1.5 * width, width), (1.2 * period * width / span, width / 10)):
            trials = np.arange(period - reach, period + reach, period * move / span)
            sharp = sharpness(slow, trials, phases)
            period = float(trials[np.argmax(sharp)])
        if sharp.max() > best[1]:
            best = (period, float(sharp.max()))
    return best


def _described(found: _Found, latency_ns: Ints, slow: Mask) -> Period:
    """What the fold at this period says."""
    phases = int(np.clip(len(slow) // 40, 24, 240))  # 40 requests a phase tell their share of slow ones
    seen = fold(found.position, latency_ns, slow, found.period, phases=phases)
    first, length = seen.slow_arc()
    inside = np.zeros(len(seen.requests), dtype=bool)
    inside[(first + np.arange(length)) % len(inside)] = True
    total_ns = seen.mean_ns * seen.requests
    mean_in, mean_out = (total_ns[m].sum() / max(seen.requests[m].sum(), 1) for m in (inside, ~inside))
    return Period(
        clock=found.clock,
        period=found.period,
        phase=first / len(inside) * found.period,
        duty=length / len(inside),
        amplitude_ns=float(mean_in - mean_out),
        p_value=found.p_value,
        cycles=float(found.position[-1]) / found.period,
    )
