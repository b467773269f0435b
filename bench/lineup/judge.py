"""One verdict against the truth, and many judgements in figures. Pure."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.lineup.adapter import Verdict
from bench.lineup.labels import Labels
from bench.lineup.scenario import CLEAN, DECOY

CONFIDENT = 0.5
SOON_S = 2.0
Z95 = 1.959964
BINS = 5


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one verdict was worth. None: that cannot be asked of this run."""

    run: str
    cause: str
    expected: str
    part: str
    """fault, clean or decoy."""
    named: str
    """The cause named first; empty for none."""
    confidence: float
    right: bool | None = None
    right_of_three: bool | None = None
    right_family: bool | None = None
    right_segment: bool | None = None
    right_culprit: bool | None = None
    change_error_s: float | None = None
    delta_error: float | None = None
    """|predicted - measured| / measured of the p99 that the fault cost."""
    alarmed: bool | None = None
    """A confident finding where nothing was wrong."""
    fell_for_it: bool | None = None
    """The decoy was named with confidence."""
    unexplained_share: float | None = None
    took_s: float = 0.0


def part_of(labels: Labels) -> str:
    """What a run is there for."""
    if labels.lookalikes or labels.cause == DECOY:
        return "decoy"
    return "fault" if labels.is_fault else "clean"


def judge(
    labels: Labels, verdict: Verdict, *, measured_delta_ms: float | None = None, confident: float = CONFIDENT
) -> Judgement:
    """Compare a verdict with the truth."""
    top, place, part = verdict.top, verdict.place, part_of(labels)
    named = top.cause if top else ""
    confidence = top.confidence if top else 0.0
    is_sure = bool(named) and confidence >= confident
    common = {
        "run": labels.run, "cause": labels.cause, "expected": labels.expected, "part": part, "named": named,
        "confidence": confidence, "unexplained_share": verdict.unexplained_share, "took_s": verdict.took_s,
    }  # fmt: skip
    fell = is_sure and (named in labels.lookalikes or labels.expected in (DECOY, CLEAN)) if part == "decoy" else None
    if not labels.is_fault:
        return Judgement(**common, alarmed=is_sure if part == "clean" else None, fell_for_it=fell)  # type: ignore[arg-type]
    right = named == labels.expected
    culprits = set(labels.culprit_ids)
    delta = top.delta_p99_ms if top else None
    has_delta = right and delta is not None and measured_delta_ms is not None and measured_delta_ms > 0
    return Judgement(
        **common,  # type: ignore[arg-type]
        right=right,
        right_of_three=labels.expected in [f.cause for f in verdict.findings[:3]],
        right_family=bool(top) and top is not None and top.family == labels.family,
        right_segment=place is not None and place.segment in labels.segments if labels.segments else None,
        right_culprit=bool(top is not None and top.culprits & culprits) if culprits else None,
        change_error_s=abs(top.started_unix_us - labels.started_unix_us) / 1e6 if top and top.started_unix_us else None,
        delta_error=abs((delta or 0) - (measured_delta_ms or 0)) / (measured_delta_ms or 1) if has_delta else None,
        fell_for_it=fell,
    )


# -- figures ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Share:
    """A share with its Wilson interval at 95 %; `of` 0: there was nothing to count."""

    count: int
    of: int

    @property
    def value(self) -> float | None:
        """The share; None of nothing."""
        return self.count / self.of if self.of else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Wilson (1927), as it is good for small numbers too."""
        if not self.of:
            return None
        p, n, z = self.count / self.of, self.of, Z95
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return max(0.0, middle - half), min(1.0, middle + half)

    def to_json(self) -> dict[str, Any]:
        """As a value ready for JSON."""
        interval = self.interval
        return {
            "count": self.count,
            "of": self.of,
            "share": None if self.value is None else round(self.value, 4),
            "wilson95": None if interval is None else [round(x, 4) for x in interval],
        }


def share_of(judgements: Iterable[Judgement], what: Callable[[Judgement], bool | None]) -> Share:
    """How many of those that can be asked."""
    answers = [answer for j in judgements if (answer := what(j)) is not None]
    return Share(sum(answers), len(answers))


def figures(judgements: Sequence[Judgement], *, confident: float = CONFIDENT) -> dict[str, Any]:
    """All figures of a set, ready for JSON."""
    faults = [j for j in judgements if j.part == "fault"]
    sure = [j for j in faults if j.named and j.confidence >= confident]
    shares = {
        "precision_at_1": share_of(faults, lambda j: j.right),
        "precision_at_3": share_of(faults, lambda j: j.right_of_three),
        "family_at_1": share_of(faults, lambda j: j.right_family),
        "segment_at_1": share_of(faults, lambda j: j.right_segment),
        "culprit_at_1": share_of(faults, lambda j: j.right_culprit),
        "coverage": Share(len(sure), len(faults)),
        "precision_of_answered": share_of(sure, lambda j: j.right),
        "change_within_2_s": share_of(
            faults, lambda j: None if j.change_error_s is None else j.change_error_s <= SOON_S
        ),
        "false_alarms": share_of(judgements, lambda j: j.alarmed),
        "decoys_blamed": share_of(judgements, lambda j: j.fell_for_it),
    }
    errors = [j.change_error_s for j in faults if j.change_error_s is not None]
    deltas = [j.delta_error for j in faults if j.delta_error is not None]
    unexplained = [j.unexplained_share for j in faults if j.unexplained_share is not None]
    took = [j.took_s for j in judgements if j.took_s]
    return {
        **{name: share.to_json() for name, share in shares.items()},
        "change_error_s": {"median": _quantile(errors, 0.5), "p90": _quantile(errors, 0.9), "count": len(errors)},
        "delta_p99_error": {"median": _quantile(deltas, 0.5), "count": len(deltas)},
        "unexplained_share": {"median": _quantile(unexplained, 0.5), "count": len(unexplained)},
        "brier": brier(judgements),
        "reliability": reliability(judgements),
        "took_s": {"median": _quantile(took, 0.5), "max": round(max(took), 2) if took else None},
    }


def brier(judgements: Iterable[Judgement]) -> float | None:
    """Mean square of (confidence - right) over all runs in which a cause was named; naming one in a clean run is wrong.

    Brier (1950). 0 is perfect, 0.25 is what always saying one half gives.
    """
    squares = [(j.confidence - bool(j.right)) ** 2 for j in judgements if j.named]
    return round(sum(squares) / len(squares), 4) if squares else None


def reliability(judgements: Iterable[Judgement]) -> list[dict[str, Any]]:
    """How often what was said with about this confidence was right."""
    bins: list[list[Judgement]] = [[] for _ in range(BINS)]
    for j in judgements:
        if j.named:
            bins[min(BINS - 1, int(j.confidence * BINS))].append(j)
    return [
        {"from": i / BINS, "count": len(b), "right": sum(bool(j.right) for j in b),
         "confidence": round(sum(j.confidence for j in b) / len(b), 3)}
        for i, b in enumerate(bins) if b
    ]  # fmt: skip


def by_cause(judgements: Iterable[Judgement]) -> dict[str, dict[str, Any]]:
    """Of each cause: how many runs, how many right, and what was said instead."""
    table: dict[str, dict[str, Any]] = {}
    for j in judgements:
        if j.part != "fault":
            continue
        row = table.setdefault(j.cause, {"runs": 0, "right": 0, "instead": {}})
        row["runs"] += 1
        row["right"] += bool(j.right)
        if not j.right:
            said = j.named or "nothing"
            row["instead"][said] = row["instead"].get(said, 0) + 1
    return dict(sorted(table.items()))


def _quantile(values: Sequence[float], q: float) -> float | None:
    """By the nearest rank; the median as the statistician's."""
    if not values:
        return None
    ordered = sorted(values)
    value = median(ordered) if q == 0.5 else ordered[min(len(ordered) - 1, math.ceil(q * len(ordered)) - 1)]
    return round(value, 4)
