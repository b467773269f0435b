"""A case: what all detectors look at, computed once. And what they answer: findings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from forensics.diagnose.attribution import Attribution, Spent
from forensics.diagnose.catalogue import CAUSES, Cause
from forensics.diagnose.intervals import covered
from forensics.diagnose.replay import without
from forensics.diagnose.service import Part
from forensics.diagnose.window import Bools, Event, Floats, Ints, Samples, Window
from forensics.statistics.robust import quantile

if TYPE_CHECKING:
    from forensics.diagnose.broker_view import BrokerView
    from forensics.diagnose.periodicity import Period
    from forensics.diagnose.slowness import Slowness

MS = 1e6
BIN_US = 1_000_000
MIDDLE = (0.35, 0.65)
"""Ranks that count as the middle: what a usual request spends."""
TAIL_MIN = 20
"""Requests that the tail is made of at least."""


_AFTER_SEALED = ("dispatch", "collate", "forward", "post", "out_loop", "downlink", "gw_wake", "render", "respond")


@dataclass(frozen=True, slots=True)
class Evidence:
    """A fact for or against a cause, with the query that shows it: `sql` runs as it is in `tailrace sql`."""

    says: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    sql: str = ""
    against: bool = False


@dataclass(frozen=True, slots=True)
class Gain:
    """What would be saved: ns of each request, how much lower the quantile would be, and how much faster the
    requests of the tail would be in the mean. The quantile may hardly move where something else is as slow; the tail
    tells then."""

    saved: Ints
    quantile_ms: float
    tail_ms: float


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause that explains part of the tail.

    `gain` is what would be saved without it (`replay.py`); `score` from 0 to 1 is how well the
    evidence fits the cause; `started_us` and `ended_us` are where it acted, wall clock; `culprits` are names by kind
    (worker, gateway, batch, request, tenant, process); `period_s` is 0 when it does not come back.
    """

    cause: Cause
    gain: Gain
    score: float
    summary: str
    evidence: Sequence[Evidence]
    started_us: int = 0
    ended_us: int = 0
    culprits: Mapping[str, Sequence[str]] = field(default_factory=dict)
    period_s: float = 0.0
    exemplars: Sequence[int] = ()
    """Numbers of requests that show it, the clearest first."""

    @property
    def delta_ms(self) -> float:
        """How much lower the quantile would be."""
        return self.gain.quantile_ms


class Case:
    """A window with its attribution, and the quantile that is asked about."""

    def __init__(self, window: Window, attribution: Attribution, *, quantile: float = 0.99) -> None:
        self.window = window
        self.attribution = attribution
        self.quantile = quantile

    # -- the tail ------------------------------------------------------------------------------------------------

    @cached_property
    def e2e_ms(self) -> Floats:
        """End-to-end time of each request, ms."""
        return self.window.requests.e2e / MS

    @cached_property
    def value_ms(self) -> float:
        """The quantile, ms."""
        return quantile(self.window.requests.e2e, self.quantile) / MS

    @cached_property
    def median_ms(self) -> float:
        """The median, ms."""
        return quantile(self.window.requests.e2e, 0.5) / MS

    @cached_property
    def tail(self) -> Bools:
        """The slowest requests: above the quantile, and at least `TAIL_MIN`."""
        count = max(TAIL_MIN, round(len(self.e2e_ms) * (1 - self.quantile)))
        slow = np.zeros(len(self.e2e_ms), dtype=np.bool_)
        slow[np.argsort(-self.e2e_ms, kind="stable")[:count]] = True
        return slow

    @cached_property
    def middle(self) -> Bools:
        """The usual requests."""
        low, high = np.quantile(self.e2e_ms, MIDDLE)
        usual: Bools = (self.e2e_ms >= low) & (self.e2e_ms <= high)
        return usual

    def excess_ms(self, *labels: Spent) -> float:
        """How much more a request of the tail spends on these than a usual one, ms."""
        spent = self.spent(*labels)
        return float(spent[self.tail].mean() - spent[self.middle].mean()) / MS

    @cached_property
    def all_excess_ms(self) -> float:
        """How much slower the tail is than the middle, ms."""
        return max(1e-9, float(self.e2e_ms[self.tail].mean() - self.e2e_ms[self.middle].mean()))

    def share(self, *labels: Spent) -> float:
        """The share of the tail's excess that is these labels'."""
        return self.excess_ms(*labels) / self.all_excess_ms

    def spent(self, *labels: Spent) -> Ints:
        """What each request spent on these, ns."""
        return sum((self.attribution.spent[label] for label in labels), np.zeros(len(self.e2e_ms), dtype=np.int64))

    # -- what would have been ------------------------------------------------------------------------------------

    def gain(self, counterfactual: Ints) -> Gain:
        """The gain with these end-to-end times (ns) instead."""
        saved = (self.window.requests.e2e - counterfactual).astype(np.int64)
        lower_ms = self.value_ms - quantile(counterfactual, self.quantile) / MS
        return Gain(saved, lower_ms, float(saved[self.tail].mean()) / MS)

    @staticmethod
    def larger(*gains: Gain) -> Gain:
        """The one that makes the tail faster."""
        return max(gains, key=lambda gain: gain.tail_ms)

    def gain_of(
        self,
        *labels: Spent,
        parts: Sequence[Part] = (),
        passes: Bools | None = None,
        gaps_ns: Floats | Ints | None = None,
        requests: Bools | None = None,
    ) -> Gain:
        """The gain without these labels of the requests and these parts of the passes, of all or those marked."""
        direct = self.spent(*labels) if labels else None
        if direct is not None and requests is not None:
            direct = np.where(requests, direct, 0)
        taken = None
        if parts:
            taken = sum((self.attribution.passes.parts[p] for p in parts), np.zeros(len(self.window.batches), np.int64))
            taken = taken if passes is None else np.where(passes, taken, 0)
        return self.gain(without(self.window, self.attribution, passes_ns=taken, gaps_ns=gaps_ns, direct_ns=direct))

    def without(self, **taken: Any) -> Ints:
        """End-to-end times as they would have been (`replay.without`)."""
        return without(self.window, self.attribution, **taken)

    @cached_property
    def slowness(self) -> "Slowness":
        """The passes that took longer than their shape explains."""
        from forensics.diagnose.slowness import Slowness

        return Slowness(self)

    @cached_property
    def broker(self) -> "BrokerView":
        """What is seen of Redis."""
        from forensics.diagnose.broker_view import BrokerView

        return BrokerView(self)

    @cached_property
    def broker_gain(self) -> Gain:
        """The gain without what the way to Redis and back takes beyond the usual."""
        spent = self.spent(Spent.BROKER)
        beyond = np.clip(spent - np.median(spent), 0, None).astype(np.int64)
        return self.gain(self.window.requests.e2e - beyond)

    @cached_property
    def spent_slowly(self) -> Ints:
        """What each request lost to passes that were slower than their shape explains, its own or those before, ns."""
        return self.spent(Spent.CPU_WAIT, Spent.SLOW_COMPUTE, Spent.BLOCKED)

    @cached_property
    def period(self) -> "Period | None":
        """How the slow requests come back, if they do."""
        from forensics.diagnose.periodicity import period_of

        return period_of(self)

    @cached_property
    def others_idle(self) -> Floats:
        """For each request: the share of its time in the worker's hands, before its pass, in which another worker of
        its model was free."""
        r, batches = self.window.requests, self.window.batches
        # By the wall clock, which all workers share on a host: when it was taken, and when its pass began.
        begun_us = r.at_us + (r.e2e - sum(r.segments[s] for s in _AFTER_SEALED)) // 1000
        taken_us = begun_us - r.segments["batch_wait"] // 1000
        length = np.maximum(begun_us - taken_us, 1).astype(np.float64)
        least = np.ones(len(r))
        workers = batches.names["worker"]
        for code, name in enumerate(workers.names):
            mine = workers.codes == code
            if not mine.any():
                continue
            busy = covered(batches.at_us[mine], batches.at_us[mine] + batches.took[mine] // 1000)
            share = np.clip((busy(begun_us) - busy(taken_us)) / length, 0.0, 1.0)
            least = np.where(r.names["worker"].where(name), least, np.minimum(least, share))
        return 1.0 - least

    def workers_of(self, passes: Bools) -> list[str]:
        """The workers of some passes, the one with most of them first."""
        names = self.window.batches.names["worker"]
        counts = np.bincount(names.codes[passes], minlength=len(names.names))
        return [names.names[i] for i in np.argsort(-counts, kind="stable") if counts[i]]

    # -- time ----------------------------------------------------------------------------------------------------

    @cached_property
    def start_us(self) -> int:
        """When the first request came."""
        return int(self.window.requests.at_us[0])

    @cached_property
    def bins(self) -> int:
        """Seconds of the window, the last one perhaps not whole."""
        return int((self.window.requests.at_us[-1] - self.start_us) // BIN_US) + 1

    def bin_of(self, at_us: Ints) -> Ints:
        """The second in which something happened; what lies outside is in the first or the last."""
        return np.clip((at_us - self.start_us) // BIN_US, 0, self.bins - 1)

    @cached_property
    def request_bin(self) -> Ints:
        """The second of each request's arrival."""
        return self.bin_of(self.window.requests.at_us)

    @cached_property
    def arrivals(self) -> Ints:
        """Requests that came in each second, answered or not."""
        unanswered = self.bin_of(self.window.unanswered_at_us)
        return np.bincount(self.request_bin, minlength=self.bins) + np.bincount(unanswered, minlength=self.bins)

    def mean_by_bin(self, values: Floats | Ints, bins: Ints) -> Floats:
        """The mean in each second; NaN where there is none."""
        counts = np.bincount(bins, minlength=self.bins)
        sums = np.bincount(bins, weights=values.astype(np.float64), minlength=self.bins)
        with np.errstate(invalid="ignore", divide="ignore"):
            means: Floats = np.where(counts > 0, sums / counts, np.nan)
        return means

    @cached_property
    def batch_bin(self) -> Ints:
        """The second of each pass."""
        return self.bin_of(self.window.batches.at_us)

    @cached_property
    def busy(self) -> Floats:
        """The share of each second in which a worker's device thread computed, mean over the workers then there."""
        batches = self.window.batches
        total = np.zeros(self.bins)
        took_us = batches.took // 1000
        for at, took in zip((batches.at_us - self.start_us).tolist(), took_us.tolist(), strict=True):
            begin, end = max(0, at), at + took
            while begin < end and (second := begin // BIN_US) < self.bins:
                stop = min(end, (second + 1) * BIN_US)
                total[second] += stop - begin
                begin = stop
        return total / BIN_US / max(1, self.workers)

    @cached_property
    def workers(self) -> int:
        """Workers that computed anything."""
        return len(np.unique(self.window.batches.names["worker"].codes)) if len(self.window.batches) else 0

    def when(self, marked: Bools) -> tuple[int, int]:
        """From the first to the last of these requests, wall clock; (0, 0) without any."""
        at = self.window.requests.at_us[marked]
        return (int(at.min()), int(at.max())) if len(at) else (0, 0)

    def seconds_us(self, marked: Bools) -> tuple[int, int]:
        """From the first of these seconds to the end of the last, wall clock; (0, 0) without any."""
        at = np.flatnonzero(marked)
        if not len(at):
            return 0, 0
        return self.start_us + int(at[0]) * BIN_US, self.start_us + (int(at[-1]) + 1) * BIN_US

    def rise(self, marked: Bools) -> float:
        """How many times as many requests arrive in these seconds as in the others."""
        if not marked.any() or marked.all():
            return 1.0
        return float(self.arrivals[marked].mean() / max(1.0, float(self.arrivals[~marked].mean())))

    @cached_property
    def repeated_by_second(self) -> Floats:
        """The share of the requests of each second whose label came before."""
        r = self.window
        bins = np.concatenate([self.request_bin, self.bin_of(r.unanswered_at_us)])
        again = np.concatenate([r.requests.numbers["repeats"] > 0, r.unanswered_repeats > 0])
        share: Floats = np.bincount(bins, weights=again, minlength=self.bins) / np.maximum(self.arrivals, 1)
        return share

    def repeated_share(self, marked: Bools) -> float:
        """The same over some seconds."""
        weights = self.arrivals[marked]
        return float(np.average(self.repeated_by_second[marked], weights=weights)) if weights.any() else 0.0

    # -- processes -----------------------------------------------------------------------------------------------

    def events(self, kind: str, proc: str = "") -> list[Event]:
        """The events of a kind, oldest first."""
        return [e for e in self.window.events if e.kind == kind and proc in ("", e.proc)]

    def samples(self, proc: str) -> list[Samples]:
        """The samples of each process of a kind."""
        return [s for s in self.window.samples if s.proc == proc]

    def sampled(self, samples: Samples, name: str) -> Floats:
        """A sampled figure by second; NaN where there is no sample."""
        inside = (samples.at_us >= self.start_us) & (samples.at_us < self.start_us + self.bins * BIN_US)
        if name not in samples.numbers or not inside.any():
            return np.full(self.bins, np.nan)
        return self.mean_by_bin(samples.numbers[name][inside], self.bin_of(samples.at_us[inside]))

    def exemplars(self, ns: Ints, count: int = 3) -> list[int]:
        """The requests of the tail that spent most on something."""
        slow = np.flatnonzero(self.tail)
        return [int(i) for i in slow[np.argsort(-ns[slow], kind="stable")][:count] if ns[i] > 0]

    @staticmethod
    def most(events: Sequence[Event]) -> list[str]:
        """The processes of some events, the one with most of their time first."""
        total: dict[str, int] = {}
        for event in events:
            total[event.inst] = total.get(event.inst, 0) + event.ns
        return sorted(total, key=lambda inst: -total[inst])

    def finding(
        self,
        cause: str,
        gain: Gain,
        score: float,
        summary: str,
        *evidence: Evidence,
        interval_us: tuple[int, int] = (0, 0),
        **rest: Any,
    ) -> Finding:
        """A finding of this case."""
        started_us, ended_us = interval_us
        return Finding(
            CAUSES[cause], gain, float(np.clip(score, 0, 1)), summary, evidence, started_us, ended_us, **rest
        )
