"""What the logs show of Redis and the way to it: its stalls, and whether one process or all of them saw these.

Each request tells two round trips with a write: its gateway's (accept) and its worker's (confirm). Each process also
sends a PING ten times a second and logs a late answer (`redis_lag`), which is a read of nothing. So a server that
stands still makes everything late at once, a server that cannot write (its disk) answers PINGs, and a slow network
is seen by the processes behind it alone. What a process was late itself (its loop) is taken off its round trips.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import Case, Gain
from forensics.diagnose.intervals import Span, common, less, overlaps, union
from forensics.diagnose.window import Floats, Ints

SLOW_MIN_MS = 12.0
TIMES_USUAL = 6.0
STALL_MIN_US = 10_000
TRIPS_MIN = 20


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
    def slow(self) -> list[Span]:
        """When one of them was under way that took far longer than usual."""
        slow = self.ms > max(SLOW_MIN_MS, TIMES_USUAL * self.usual_ms)
        begun = self.at_us[slow]
        return union(zip(begun.tolist(), (begun + (self.ms[slow] * 1000).astype(np.int64)).tolist(), strict=True))


@dataclass
class BrokerView:
    """What a case shows of Redis. Spans are of the wall clock, us."""

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
                if inst and mine.sum() >= TRIPS_MIN:
                    at, us = begun[mine], ns[mine] // 1000
                    own_us = overlaps(self._late(proc, inst), at, at + us)
                    found.append(RoundTrips(inst, proc, at, np.maximum(us - own_us, 1) / 1000))
        return found

    def _late(self, proc: str, inst: str) -> list[Span]:
        events = [e for kind in ("loop_lag", "gc") for e in self.case.events(kind, proc) if e.inst == inst]
        return union((e.at_us, e.at_us + e.ns // 1000) for e in events)

    @cached_property
    def still(self) -> list[Span]:
        """When PINGs of a gateway and of a worker were late at once."""
        late: dict[str, list[Span]] = {"gateway": [], "worker": []}
        for event in self.case.events("redis_lag"):
            late[event.proc].append((event.at_us, event.at_us + event.ns // 1000))
        return _long(common(union(late["gateway"]), union(late["worker"])))

    @cached_property
    def unwritten(self) -> list[Span]:
        """When writes of a gateway and of a worker were slow at once, and PINGs were not."""
        slow: dict[str, list[Span]] = {"gateway": [], "worker": []}
        for trips in self.trips:
            slow[trips.proc] += trips.slow
        pinged = union((e.at_us, e.at_us + e.ns // 1000) for e in self.case.events("redis_lag"))
        return _long(less(common(union(slow["gateway"]), union(slow["worker"])), pinged))

    def gain(self, stalls: list[Span]) -> Gain:
        """The gain without stalls: what they took of each request's way, and of its wait for a worker that had none."""
        case = self.case
        r = case.window.requests
        spent = case.spent(Spent.BROKER, Spent.FETCH, Spent.LINGER, Spent.RECONNECT)
        within_ns = overlaps(stalls, r.at_us, r.at_us + r.e2e // 1000) * 1000
        return case.gain(r.e2e - np.minimum(within_ns, np.maximum(spent, 0)))

    @cached_property
    def raised(self) -> dict[str, float]:
        """For each process: by how many ms its slow seconds' median round trip lies above its usual one."""
        found = {}
        for trips in self.trips:
            bins = self.case.bin_of(trips.at_us)
            medians = np.array([np.median(trips.ms[bins == b]) for b in np.unique(bins)])
            found[trips.inst] = max(0.0, float(np.quantile(medians, 0.9)) - trips.usual_ms)
        return found


def _long(spans: list[Span]) -> list[Span]:
    return [span for span in spans if span[1] - span[0] >= STALL_MIN_US]
