"""How many requests a second come, lately: the mean over the past, where the past fades exponentially."""

import math

MEMORY_NS = 2_000_000_000
"""What came this long ago counts for 1 / e."""
COUNT_MIN = 4
"""So many requests are no rate yet."""


class ArrivalRate:
    """Counts arrivals; the rate is their faded count over the faded time, so it is unbiased from the beginning on."""

    def __init__(self, memory_ns: int = MEMORY_NS) -> None:
        if memory_ns <= 0:
            raise ValueError(f"memory_ns must be positive, got {memory_ns}")
        self._memory_ns = memory_ns
        self._began_at_ns: int | None = None
        self._counted_at_ns = 0
        self._seen = 0
        self._faded = 0.0

    def observe(self, count: int, now_ns: int) -> None:
        """So many requests have come since the last call. The first call only begins the count: they came before it."""
        if self._began_at_ns is None:
            self._began_at_ns = self._counted_at_ns = now_ns
            return
        self._faded = self._faded * self._left_of(self._counted_at_ns, now_ns) + count
        self._counted_at_ns = max(self._counted_at_ns, now_ns)
        self._seen += count

    def per_s(self, now_ns: int) -> float:
        """Requests a second; 0 while too few have been seen."""
        if self._began_at_ns is None or self._seen < COUNT_MIN or now_ns <= self._began_at_ns:
            return 0.0
        time_s = self._memory_ns * (1 - self._left_of(self._began_at_ns, now_ns)) / 1e9
        return self._faded * self._left_of(self._counted_at_ns, now_ns) / time_s

    def _left_of(self, then_ns: int, now_ns: int) -> float:
        return math.exp(-max(0, now_ns - then_ns) / self._memory_ns)
