"""When it began: the changes of the latency, and what else happened at that moment."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from forensics.diagnose.case import Case, Finding
from forensics.diagnose.window import Window
from forensics.statistics.changes import Change, Series, find_changes

JOIN_US = 3_000_000
"""So near to a change something else counts as having happened with it."""
TOLD_MAX = 5
CLEARLY = 3.0
"""So many times as much a second must be saved while a cause acts as in the rest of the time."""
NEAR_US = 3_000_000
"""A cause that began longer before the change than this is told to have begun with it."""
NARROW_US = 1_500_000
"""An interval that is wider by less is left as it was told."""
TOLD = ("model_load", "worker_lost", "redis_restart", "reconnect")


@dataclass(frozen=True, slots=True)
class Happened:
    """Something that was logged near the change."""

    what: str
    at_us: int


@dataclass(frozen=True, slots=True)
class Onset:
    """The first change to worse, between `lo_us` and `hi_us` with 95 %, until `until_us`, when it was better again
    or the window ended; `changes` are all of the end-to-end time, and
    `first` are the segments that changed near it, the earliest first."""

    at_us: int
    lo_us: int
    hi_us: int
    until_us: int
    of_everybody: bool
    """The median changed, not only the slowest."""
    before_ms: float
    after_ms: float
    changes: Sequence[Change]
    first: Sequence[str]
    beside: Sequence[Happened]

    def to_json(self) -> dict[str, Any]:
        """The onset as a value ready for JSON."""
        return {
            "at_us": self.at_us,
            "lo_us": self.lo_us,
            "hi_us": self.hi_us,
            "until_us": self.until_us,
            "of_everybody": self.of_everybody,
            "before_ms": self.before_ms,
            "after_ms": self.after_ms,
            "changes": [
                {
                    "at_us": c.at_ns // 1000, "lo_us": c.lo_ns // 1000, "hi_us": c.hi_ns // 1000,
                    "ratio": c.ratio, "series": c.series.value,
                }
                for c in self.changes
            ],
            "first": list(self.first),
            "beside": [{"what": h.what, "at_us": h.at_us} for h in self.beside],
        }  # fmt: skip


def onset_of(case: Case) -> Onset | None:
    """The first change to worse of the end-to-end time; None when its level did not change."""
    r = case.window.requests
    at_ns = r.at_us * 1000
    changes = find_changes(at_ns, r.e2e, count_too=False)
    worse = [c for c in changes if c.ratio > 1]
    if not worse:
        return None
    c = worse[0]
    moved: list[tuple[int, str]] = []
    grown = {name: float(ns[case.tail].mean() - ns[case.middle].mean()) for name, ns in r.segments.items()}
    for name in sorted(grown, key=lambda name: -grown[name])[:4]:
        if grown[name] > 0.05 * case.all_excess_ms * 1e6:
            found = [s for s in find_changes(at_ns, r.segments[name], count_too=False) if s.ratio > 1]
            if found:
                moved.append((min(s.at_ns for s in found), name))
    return Onset(
        at_us=c.at_ns // 1000,
        lo_us=c.lo_ns // 1000,
        hi_us=c.hi_ns // 1000,
        until_us=min(
            (b.at_ns // 1000 for b in changes if b.ratio < 1 and b.at_ns > c.at_ns), default=int(r.at_us[-1]) + 1
        ),
        of_everybody=c.series is Series.MEDIAN,
        before_ms=c.before / 1e6,
        after_ms=c.after / 1e6,
        changes=changes,
        first=[name for _, name in sorted(moved)],
        beside=_beside(case.window, c.lo_ns // 1000 - JOIN_US, c.hi_ns // 1000 + JOIN_US),
    )


def acted(case: Case, finding: Finding, onset: Onset | None) -> Finding:
    """The finding with the time in which it acted, without what little there was of it before and after.

    `onset` if the finding is what changed then: what was told, or is found here, counts as far as it is near.
    """
    started_us, ended_us = _mostly(case, finding)
    if onset is not None:
        began = (finding.started_us, started_us)
        started_us = min(began, key=lambda at_us: abs(at_us - onset.at_us))
        if started_us < onset.lo_us - NEAR_US:
            started_us = onset.at_us
    return replace(finding, started_us=started_us, ended_us=max(started_us, ended_us))


def _mostly(case: Case, finding: Finding) -> tuple[int, int]:
    """From when to when most of it would be saved; what was told where the rest of the time is not much better.

    Seconds count by what would be saved in them: from where the cumulative sum of their distance to the mean is lowest
    to where it is highest.
    """
    told = finding.started_us, finding.ended_us
    saved = finding.gain.saved
    by_second = np.bincount(case.request_bin, weights=np.maximum(saved, 0), minlength=case.bins)
    if not by_second.any():
        return told
    walk = np.concatenate([[0.0], np.cumsum(by_second - by_second.mean())])
    last = int(np.argmax(walk))
    first = int(np.argmin(walk[: last + 1]))
    outside = np.ones(case.bins, dtype=np.bool_)
    outside[first:last] = False
    if first == last or (outside.any() and by_second[~outside].mean() < CLEARLY * by_second[outside].mean()):
        return told
    marked = np.flatnonzero((saved > 0) & ~outside[case.request_bin])
    at = case.window.requests.at_us[marked]
    started_us, ended_us = int(at.min()), int(at.max())
    return (
        started_us if told[0] < started_us - NARROW_US else told[0],
        ended_us if told[1] > ended_us + NARROW_US else told[1],
    )


def _beside(window: Window, from_us: int, until_us: int) -> list[Happened]:
    """Processes that came and went, configurations that changed, models that were loaded in this time."""
    found = []
    for life in window.lives:
        if life.hello and from_us <= life.first_us <= until_us:
            found.append(Happened(f"{life.proc} {life.inst} started", life.first_us))
        if from_us <= life.last_us <= until_us and life.last_us < window.newest_us - 2_000_000:
            how = f"stopped ({life.bye})" if life.bye else "ended without a goodbye"
            found.append(Happened(f"{life.proc} {life.inst} {how}", life.last_us))
    found += [
        Happened(f"{event.kind} in {event.proc} {event.inst}", event.at_us)
        for event in window.events
        if event.kind in TOLD and from_us <= event.at_us <= until_us
    ]
    by_process: dict[str, Any] = {}
    for config in window.configs:
        before = by_process.get(config.inst)
        if before is not None and before != config.config and from_us <= config.at_us <= until_us:
            keys = sorted(k for k in {*before, *config.config} if before.get(k) != config.config.get(k))
            found.append(Happened(f"{config.proc} {config.inst} changed {', '.join(keys)}", config.at_us))
        by_process[config.inst] = config.config
    middle = (from_us + until_us) // 2
    return sorted(found, key=lambda h: abs(h.at_us - middle))[:TOLD_MAX]
