"""Passes that took longer than their shape explains: when, on which workers, and what the machine did meanwhile.

The causes of this kind (a neighbour, a quota, too many threads, a slow processor, a slow worker, a held interpreter)
take the same milliseconds, so they are told apart here, once, by the quadrant of the meters: computed more (CPU time
up), wanted to compute and could not (run-queue delay up), or neither (blocked).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from forensics.diagnose.case import MS, Case, Gain
from forensics.diagnose.intervals import covered
from forensics.diagnose.machine import cores_of, foreign
from forensics.diagnose.service import Part
from forensics.diagnose.window import Bools, Floats, Ints

SLOW_SHARE = 0.15
"""A second is slow when its passes took this much longer than they should, in the mean."""
FOREIGN_MIN = 0.15
"""Share of the machine that others must use more than else to be the reason."""
EPISODES_MIN = 3
EPISODE_SHARE = 0.2
"""Of the worst episode; what is less is no episode of the same thing."""
REGULAR = 0.2
"""Gaps between episodes that vary by less, relative to their mean, are a period."""
PARTS = (Part.CPU_WAIT, Part.SLOW_COMPUTE, Part.BLOCKED)


@dataclass
class Slowness:
    """The slow passes of a case."""

    case: Case

    @cached_property
    def beyond(self) -> Ints:
        """What each pass took beyond the normal for one of these reasons, ns."""
        parts = self.case.attribution.passes.parts
        return sum((parts[part] for part in PARTS), np.zeros(len(self.case.window.batches), dtype=np.int64))

    @cached_property
    def seconds(self) -> Bools:
        """Which seconds are slow."""
        case = self.case
        took = np.bincount(case.batch_bin, weights=case.window.batches.took, minlength=case.bins)
        beyond = np.bincount(case.batch_bin, weights=self.beyond, minlength=case.bins)
        slow: Bools = beyond > SLOW_SHARE * np.maximum(took - beyond, 1)
        return slow

    @cached_property
    def passes(self) -> Bools:
        """The passes of slow seconds that took longer than they should."""
        slow: Bools = self.seconds[self.case.batch_bin] & (self.beyond > 0)
        return slow

    def share_of(self, part: Part) -> float:
        """The share of what is beyond that has this reason."""
        return float(self.case.attribution.passes.parts[part].sum() / max(1, self.beyond.sum()))

    @cached_property
    def gain(self) -> Gain:
        """The gain without any of it."""
        return self.case.gain_of(parts=PARTS)

    def gain_of_workers(self, worker: str) -> Gain:
        """The gain without what is beyond on one worker."""
        return self.case.gain_of(parts=PARTS, passes=self.case.window.batches.names["worker"].where(worker))

    @cached_property
    def tail_share(self) -> float:
        """The share of the tail's excess that these passes are, waiting behind them included."""
        from forensics.diagnose.attribution import Spent

        return self.case.share(Spent.CPU_WAIT, Spent.SLOW_COMPUTE, Spent.BLOCKED)

    def ratio(self, marked: Bools) -> float:
        """How many times as long as predicted these passes took, in the median; 1 without any."""
        predicted = self.case.attribution.passes.predicted
        among = marked & (predicted > 0)
        if not among.any():
            return 1.0
        return float(np.median(self.case.window.batches.took[among] / predicted[among]))

    @cached_property
    def by_worker(self) -> dict[str, float]:
        """For each worker that computed in the slow seconds: the ratio of its passes there."""
        names = self.case.window.batches.names["worker"]
        in_slow = self.seconds[self.case.batch_bin]
        found = {}
        for name in names.names:
            marked = names.where(name) & in_slow
            if marked.any():
                found[name] = self.ratio(marked)
        return found

    @cached_property
    def odd_worker(self) -> str:
        """The one worker that is slow while another is not; "" when there is none such."""
        ranked = sorted(self.by_worker.items(), key=lambda item: -item[1])
        if len(ranked) < 2:
            return ""
        (name, worst), (_, second) = ranked[:2]
        return name if worst - 1 > 3 * max(second - 1, 0.03) else ""

    def compare(self, by_second: Floats) -> tuple[float, float]:
        """The mean of a figure in the slow seconds and in the others; NaN where it was not sampled."""
        known = ~np.isnan(by_second)
        slow, other = by_second[known & self.seconds], by_second[known & ~self.seconds & self.served]
        return (float(slow.mean()) if len(slow) else np.nan, float(other.mean()) if len(other) else np.nan)

    @cached_property
    def served(self) -> Bools:
        """Seconds in which anything was computed."""
        some: Bools = np.bincount(self.case.batch_bin, minlength=self.case.bins) > 0
        return some

    @cached_property
    def foreign_rise(self) -> float:
        """How many cores more than else others used in the slow seconds."""
        slow, other = self.compare(foreign(self.case))
        return 0.0 if np.isnan(slow) or np.isnan(other) else max(0.0, (slow - other) / 100)

    @cached_property
    def foreign_share(self) -> float:
        """The same, as a share of the machine."""
        return self.foreign_rise / cores_of(self.case)

    def worker_figure(self, name: str) -> tuple[float, float]:
        """The mean over workers of a sampled figure, in slow seconds and in others; 0 where it was not sampled."""
        pairs = [self.compare(self.case.sampled(samples, name)) for samples in self.case.samples("worker")]
        slow, other = ([pair[i] for pair in pairs if not np.isnan(pair[i])] for i in (0, 1))
        return float(np.mean(slow)) if slow else 0.0, float(np.mean(other)) if other else 0.0

    @cached_property
    def period_s(self) -> float:
        """At which distance slow episodes begin, or those in which others use the machine; 0 if that is not regular."""
        return _period(self.episode_starts_s) or _period(self.foreign_starts_s)

    @cached_property
    def episode_starts_s(self) -> Floats:
        """When each episode of slow seconds begins, by its first slow pass; what is small beside the worst is none."""
        edges = np.flatnonzero(np.diff(np.concatenate([[0], self.seconds.astype(np.int8), [0]])))
        at_us, beyond = self.case.window.batches.at_us, np.where(self.passes, self.beyond, 0)
        starts, weights = [], []
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            mine = (self.case.batch_bin >= begin) & (self.case.batch_bin < end)
            weight = float(beyond[mine].sum())
            # The first pass that counts: a small excess earlier in that second is somebody else's.
            counts = mine & (beyond >= EPISODE_SHARE * beyond[mine].max(initial=0)) & (beyond > 0)
            if counts.any():
                starts.append(float(at_us[counts].min()) / 1e6)
                weights.append(weight)
        heavy = np.array(weights) >= EPISODE_SHARE * max(weights, default=0.0)
        found: Floats = np.array(starts)[heavy]
        return found

    @cached_property
    def foreign_starts_s(self) -> Floats:
        """When others begin to use the machine as much as half of the most that they ever do, if that is much."""
        used = np.nan_to_num(foreign(self.case)) / 100
        most = used.max(initial=0.0)
        if most < FOREIGN_MIN * cores_of(self.case):
            return np.zeros(0)
        busy = used >= most / 2
        return np.flatnonzero(busy & ~np.concatenate([[False], busy[:-1]])).astype(np.float64)

    @cached_property
    def cores_per_pass(self) -> tuple[float, float]:
        """Cores that the workers' processes use while one of their passes runs, in slow seconds and in others."""
        case = self.case
        busy = np.bincount(case.batch_bin, weights=case.window.batches.took, minlength=case.bins) / 1e9
        used = np.zeros(case.bins)
        for samples in case.samples("worker"):
            used += np.nan_to_num(case.sampled(samples, "cpu_process")) / 100
        with np.errstate(invalid="ignore", divide="ignore"):
            slow, other = self.compare(np.where(busy > 0.05, used / busy, np.nan))
        return float(np.nan_to_num(slow)), float(np.nan_to_num(other))

    @cached_property
    def idle_cpu(self) -> tuple[float, float]:
        """CPU that the workers' processes used beside their passes, in cores, in slow seconds and in others."""
        case = self.case
        cpu = np.bincount(case.batch_bin, weights=case.window.batches.numbers["cpu_ns"], minlength=case.bins) / 1e9
        used = np.zeros(case.bins)
        for samples in case.samples("worker"):
            used += np.nan_to_num(case.sampled(samples, "cpu_process")) / 100
        threads = max(1, case.window.torch_threads)
        slow, other = self.compare(np.maximum(used - cpu * threads, 0.0))
        return float(np.nan_to_num(slow)), float(np.nan_to_num(other))

    @cached_property
    def python_ratio(self) -> float:
        """How many times as long the pure Python stretches (parsing in the gateway, encoding) took in slow seconds."""
        r, case = self.case.window.requests, self.case
        handled = r.segments["pre"] + r.segments["render"]
        slow = self.seconds[case.request_bin]
        if not slow.any() or slow.all():
            return 1.0
        return float(np.median(handled[slow]) / max(1.0, float(np.median(handled[~slow]))))

    @cached_property
    def crowding(self) -> float:
        """How much longer, relative to the law, passes take that ran beside a pass of another worker than those that
        ran alone: 0 for no difference."""
        beside = self._beside()
        predicted = self.case.attribution.passes.predicted
        ratio = self.case.window.batches.took / np.maximum(predicted, 1)
        known = predicted > 0
        if (known & beside).sum() < 5 or (known & ~beside).sum() < 5:
            return 0.0
        return float(np.median(ratio[known & beside]) / np.median(ratio[known & ~beside]) - 1)

    def _beside(self) -> Bools:
        """Passes that overlapped with one of another worker for more than half of their time; by the wall clock."""
        batches = self.case.window.batches
        begin = batches.at_us.astype(np.int64)
        end = begin + batches.took // 1000
        workers = batches.names["worker"].codes
        overlap = np.zeros(len(batches), dtype=np.float64)
        for code in np.unique(workers):
            mine, theirs = workers == code, workers != code
            if theirs.any():
                theirs_until = covered(begin[theirs], end[theirs])
                overlap[mine] = theirs_until(end[mine]) - theirs_until(begin[mine])
        return overlap > 0.5 * np.maximum(batches.took // 1000, 1)

    @property
    def is_crowded_out(self) -> bool:
        """Mostly they wait for a core while others use the machine more: it is not the worker that is slow."""
        return self.share_of(Part.CPU_WAIT) > 0.5 and self.foreign_share > FOREIGN_MIN

    @cached_property
    def density(self) -> float:
        """The share of slow seconds among those with passes, from the first slow one to the last."""
        slow = np.flatnonzero(self.seconds)
        if not len(slow):
            return 0.0
        span = self.served[slow[0] : slow[-1] + 1]
        return float(len(slow) / max(1, span.sum()))

    def slow_workers(self) -> list[str]:
        """The workers whose passes are slow in the slow seconds, the slowest first."""
        ranked = sorted(self.by_worker.items(), key=lambda item: -item[1])
        return [name for name, ratio in ranked if ratio > 1 + SLOW_SHARE]

    @property
    def beyond_ms(self) -> float:
        """What a slow pass takes beyond the normal, ms, in the mean."""
        return float(self.beyond[self.passes].mean()) / MS if self.passes.any() else 0.0

    @cached_property
    def interval_us(self) -> tuple[int, int]:
        """From the first slow second to the last."""
        seconds = np.flatnonzero(self.seconds)
        if not len(seconds):
            return 0, 0
        first = self.case.window.batches.at_us[self.passes]
        return (int(first.min()), int(first.max())) if len(first) else (0, 0)


def _period(starts_s: Floats) -> float:
    """The mean distance of episodes that begin regularly; 0 when they do not, or are too few."""
    gaps = np.diff(starts_s)
    if len(gaps) < EPISODES_MIN - 1 or gaps.std() > REGULAR * gaps.mean():
        return 0.0
    return float(gaps.mean())
