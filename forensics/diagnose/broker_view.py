"""What the logs show of Redis and the way to it: its stalls, and whether one process or all of them saw these.

Each request tells two round trips with a write: its gateway's (accept) and its worker's (confirm). Each process also
sends a PING ten times a second and logs a late answer (`redis_lag`), which is a read of nothing. So a server that
stands still makes everything late at once, a server that cannot write (its disk) answers PINGs, and a slow network
is seen by the processes behind it alone.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from forensics.diagnose.case import MS, Case
from forensics.diagnose.window import Bools, Floats, Ints

SLOW_MIN_MS = 8.0
TIMES_MEDIAN = 5.0
TOGETHER_US = 30_000


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """Round trips of one process, by when they began."""

    inst: str
    proc: str
    at_us: Ints
    ms: Floats

    @property
    def usual_ms(self) -> float:
        """A lower quartile: half of them may be slow."""
        return float(np.quantile(self.ms, 0.25))

    @property
    def slow(self) -> Bools:
        """Those that took far longer than usual."""
        slow: Bools = self.ms > max(SLOW_MIN_MS, TIMES_MEDIAN * self.usual_ms)
        return slow


@dataclass
class BrokerView:
    """What a case shows of Redis."""

    case: Case

    @cached_property
    def trips(self) -> list[RoundTrips]:
        """The writes of each process with enough of them."""
        r = self.case.window.requests
        found = []
        handed_over = r.segments["recv"] + r.segments["pre"] + r.segments["gw_loop"]
        answered = r.e2e - sum(r.segments[name] for name in ("downlink", "gw_wake", "render", "respond"))
        for proc, column, since in (("gateway", "accept_ns", handed_over), ("worker", "confirm_ns", answered)):
            ns, begun = r.numbers[column], r.at_us + since // 1000
            for inst in r.names[proc].names:
                mine = r.names[proc].where(inst) & (ns > 0)
                if inst and mine.sum() >= 20:
                    found.append(RoundTrips(inst, proc, begun[mine], ns[mine] / MS))
        return found

    @cached_property
    def pings(self) -> dict[str, list[tuple[int, int]]]:
        """Late PINGs of each process: from, to, wall clock."""
        late: dict[str, list[tuple[int, int]]] = {}
        for event in self.case.events("redis_lag"):
            late.setdefault(event.inst, []).append((event.at_us, event.at_us + event.ns // 1000))
        return late

    @cached_property
    def stalls(self) -> list[tuple[int, int, frozenset[str]]]:
        """Intervals in which writes were slow, and the processes that saw it."""
        edges: list[tuple[int, int, str]] = []
        for trips in self.trips:
            for at, ms in zip(trips.at_us[trips.slow].tolist(), trips.ms[trips.slow].tolist(), strict=True):
                edges.append((at, at + int(ms * 1000), trips.inst))
        merged: list[tuple[int, int, set[str]]] = []
        for start, end, inst in sorted(edges):
            if merged and start <= merged[-1][1] + TOGETHER_US:
                last = merged[-1]
                merged[-1] = (last[0], max(last[1], end), last[2] | {inst})
            else:
                merged.append((start, end, {inst}))
        return [(start, end, frozenset(insts)) for start, end, insts in merged]

    @cached_property
    def shared(self) -> float:
        """The share of the stalled time that more than one process saw."""
        total = sum(end - start for start, end, _ in self.stalls)
        return sum(end - start for start, end, insts in self.stalls if len(insts) > 1) / max(1, total)

    @cached_property
    def pinged(self) -> float:
        """The share of the stalled time in which PINGs were late as well, as far as they could tell."""
        late = sorted(span for spans in self.pings.values() for span in spans)
        covered = 0
        for start, end, _ in self.stalls:
            covered += max((min(end, b) - max(start, a) for a, b in late), default=0) if late else 0
        total = sum(end - start for start, end, _ in self.stalls)
        return max(0.0, min(1.0, covered / max(1, total)))

    @cached_property
    def raised(self) -> dict[str, float]:
        """For each process: by how many ms its slow seconds' median round trip lies above its usual one."""
        found = {}
        for trips in self.trips:
            bins = self.case.bin_of(trips.at_us)
            medians = np.array([np.median(trips.ms[bins == b]) for b in np.unique(bins)])
            found[trips.inst] = max(0.0, float(np.quantile(medians, 0.9)) - trips.usual_ms)
        return found

    @property
    def interval_us(self) -> tuple[int, int]:
        """From the first stall to the end of the last."""
        return (self.stalls[0][0], max(end for _, end, _ in self.stalls)) if self.stalls else (0, 0)
