"""Neighbouring requests share their fate: how many of them say what one alone would say."""

import numpy as np

from forensics.statistics.robust import Floats


def correlated_items(series: Floats) -> float:
    """How many neighbours say what one alone would say: the integrated autocorrelation time, in items, at least 1.

    1 + 2 sum of the autocorrelations, cut off at the first lag that is five times the sum so far (Sokal's window).
    """
    count = len(series)
    centred = series - np.mean(series) if count else series
    power = float(centred @ centred)
    if count < 8 or power == 0:
        return 1.0
    size = 1 << (2 * count - 1).bit_length()
    correlation = np.fft.irfft(np.abs(np.fft.rfft(centred, size)) ** 2, size)[: count // 4] / power
    heaped = 2 * np.cumsum(correlation) - 1
    beyond = np.flatnonzero(np.arange(len(heaped)) >= 5 * heaped)
    return max(float(heaped[beyond[0] if len(beyond) else -1]), 1.0)
