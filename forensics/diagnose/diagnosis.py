"""From logs to an answer: the gate, the window, the attribution, the detectors, the ranking."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from forensics import quality
from forensics.diagnose import ranking
from forensics.diagnose.attribution import NORMAL, Attribution, Spent, attribute
from forensics.diagnose.case import MS, Case
from forensics.diagnose.detectors import DETECTORS
from forensics.diagnose.linkage import Rule, rules_of
from forensics.diagnose.periodicity import Period, told
from forensics.diagnose.ranking import Ranked
from forensics.diagnose.when import Onset, acted, onset_of
from forensics.diagnose.who import contrasts_of, mix_or_rate
from forensics.diagnose.window import NothingToDiagnose, Window, ids, take
from forensics.statistics.contrast import Contrast
from forensics.statistics.mix import QuantileChange
from forensics.statistics.quantiles import allocate
from forensics.store import Store
from shared.timeline import CLASS_OF

__all__ = ["Diagnosis", "NothingToDiagnose", "diagnose"]

NEWS_MIN = 0.5
"""A finding that is news to this extent is what changed at the onset."""
REQUESTS_MIN = 100
"""With fewer there is no tail to speak of."""


@dataclass(frozen=True, slots=True)
class Share:
    """What the quantile and the median are made of: ms of a segment, or of what the time was spent on."""

    name: str
    kind: str
    at_quantile_ms: float
    at_median_ms: float


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The answer. `refused` says why nothing can be told; then there are no findings."""

    quantile: float
    value_ms: float
    median_ms: float
    requests: int
    unanswered: Mapping[str, int]
    started_us: int
    ended_us: int
    segments: Sequence[Share]
    spent: Sequence[Share]
    onset: Onset | None
    period: Period | None
    mix: QuantileChange | None
    """Of the change at the onset: other requests, or the same ones slower."""
    who: Sequence[Contrast]
    rules: Sequence[Rule]
    findings: Sequence[Ranked]
    exemplars: Mapping[int, str]
    unknown_share: float
    verdict: str
    doubts: Sequence[quality.Finding]
    case: Case = field(repr=False)
    """What it was found in, for reports that draw it."""
    refused: Sequence[quality.Finding] = ()

    def to_json(self) -> dict[str, Any]:
        """The answer as a value ready for JSON."""
        return {
            "verdict": self.verdict,
            "quantile": self.quantile,
            "value_ms": self.value_ms,
            "median_ms": self.median_ms,
            "requests": self.requests,
            "unanswered": dict(self.unanswered),
            "started_us": self.started_us,
            "ended_us": self.ended_us,
            "segments": [_share(s) for s in self.segments],
            "spent": [_share(s) for s in self.spent],
            "onset": self.onset.to_json() if self.onset else None,
            "period": _period(self.period),
            "mix": _mix(self.mix),
            "who": [_contrast(c) for c in self.who],
            "rules": [{"says": rule.says, "numbers": dict(rule.numbers)} for rule in self.rules],
            "unknown_share": self.unknown_share,
            "findings": [self._finding(r) for r in self.findings],
            "doubts": [f.to_json() for f in self.doubts],
            "refused": [f.to_json() for f in self.refused],
        }

    def _finding(self, ranked: Ranked) -> dict[str, Any]:
        f = ranked.finding
        return {
            "cause": f.cause.id,
            "name": f.cause.name,
            "title": f.cause.title,
            "family": f.cause.id[0],
            "segment": self.segment_of(ranked),
            "segments": list(f.cause.segments),
            "confidence": ranked.confidence,
            "delta_p99_ms" if self.quantile == 0.99 else "delta_ms": f.delta_ms,
            "tail_ms": f.gain.tail_ms,
            "explained": ranked.explained,
            "news": ranked.news,
            "score": f.score,
            "summary": f.summary,
            "started_us": f.started_us,
            "ended_us": f.ended_us,
            "period_s": f.period_s,
            "culprits": {kind: self.named(kind, names) for kind, names in f.culprits.items()},
            "evidence": [
                {"says": e.says, "numbers": dict(e.numbers), "sql": e.sql, "against": e.against} for e in f.evidence
            ],
            "remedy": f.cause.remedy,
            "check": f.cause.check,
            "exemplars": [self.exemplars[i] for i in f.exemplars if i in self.exemplars],
        }

    def named(self, kind: str, names: Sequence[str]) -> list[str]:
        """Culprits by name; those of kind `request` are numbers in the findings."""
        if kind != "request":
            return list(names)
        return [self.exemplars[int(name)] for name in names if int(name) in self.exemplars]

    def segment_of(self, ranked: Ranked) -> str:
        """Where the cause shows most, of the segments that it can show in."""
        grown = {s.name: s.at_quantile_ms - s.at_median_ms for s in self.segments}
        return max(ranked.finding.cause.segments, key=lambda name: grown.get(name, 0.0))


def diagnose(
    store: Store,
    *,
    now_us: int,
    quantile: float = 0.99,
    since_us: int | None = None,
    until_us: int | None = None,
    baseline_us: tuple[int, int] | None = None,
    model: str = "",
) -> Diagnosis:
    """Say why the quantile is what it is. Raises NothingToDiagnose for a window without enough requests."""
    told = quality.check(store, now_us=now_us)
    window = take(store, since_us=since_us, until_us=until_us, model=model)
    if len(window.requests) < REQUESTS_MIN:
        raise NothingToDiagnose(
            f"{len(window.requests)} answered requests in this time are too few for p{100 * quantile:g}: "
            f"at least {REQUESTS_MIN} are needed"
        )
    reference = None
    if baseline_us is not None:
        at = window.batches.at_us
        reference = (at >= baseline_us[0]) & (at < baseline_us[1])
    case = Case(window, attribute(window, reference), quantile=quantile)
    refused = [f for f in told if f.severity is quality.Severity.REFUSE]
    doubts = [f for f in told if f.severity is quality.Severity.DOUBT]
    onset = onset_of(case)
    if onset is not None and reference is None:
        # What is normal is what was before it changed.
        case = Case(window, attribute(window, window.batches.at_us < onset.lo_us), quantile=quantile)
    attribution = case.attribution
    findings = [] if refused else [f for f in (detect(case) for detect in DETECTORS) if f is not None]
    ranked = [
        replace(r, finding=acted(case, r.finding, onset if r.news > NEWS_MIN else None))
        for r in ranking.rank(case, findings, onset)
    ]
    wanted = {i for r in ranked for i in (*r.finding.exemplars, *map(int, r.finding.culprits.get("request", ())))}
    numbers = sorted(wanted)
    return Diagnosis(
        quantile=quantile,
        value_ms=case.value_ms,
        median_ms=case.median_ms,
        requests=len(window.requests),
        unanswered=window.unanswered,
        started_us=case.start_us,
        ended_us=int(window.requests.at_us[-1]),
        segments=_shares(case, window.requests.segments, {name: kind.value for name, kind in CLASS_OF.items()}),
        spent=_shares(case, attribution.spent, {s: "normal" if s in NORMAL else "disturbed" for s in Spent}),
        onset=onset,
        period=case.period,
        mix=mix_or_rate(case, onset),
        who=contrasts_of(case),
        rules=rules_of(case, onset),
        findings=ranked,
        exemplars=dict(zip(numbers, ids(store, window, numbers), strict=True)) if numbers else {},
        unknown_share=_unknown(case, attribution, ranked),
        verdict=_verdict(case, window, ranked, refused),
        doubts=doubts,
        case=case,
        refused=refused,
    )


def _shares(case: Case, columns: Mapping[Any, Any], kinds: Mapping[Any, str]) -> list[Share]:
    """What the quantile and the median consist of: both add up."""
    high, low = (allocate(case.window.requests.e2e, columns, p).parts_ns for p in (case.quantile, 0.5))
    shares = [
        Share(str(name), kinds[name], high[name] / MS, low[name] / MS) for name in columns if high[name] or low[name]
    ]
    return sorted(shares, key=lambda s: s.at_median_ms - s.at_quantile_ms)


def _unknown(case: Case, attribution: Attribution, ranked: Sequence[Ranked]) -> float:
    """The share of the tail's time for which there is no name: what the logs do not cover, and what was out of the
    ordinary while no finding claims it."""
    nameless = {Spent.UNKNOWN}
    claimed = {r.finding.cause.id for r in ranked}
    if not claimed & {"B6", "E1", "D1", "D2", "D3", "D4", "H3", "C2"}:
        nameless |= {Spent.BLOCKED, Spent.SLOW_COMPUTE}
    total = float(case.window.requests.e2e[case.tail].sum())
    return float(sum(attribution.spent[label][case.tail].sum() for label in nameless)) / max(1.0, total)


def _verdict(case: Case, window: Window, ranked: Sequence[Ranked], refused: Sequence[quality.Finding]) -> str:
    """The answer in a word: the cause's id, "unknown (in SEGMENT, worker W)", "cannot say", or "nothing stands out"."""
    if refused:
        return "cannot say: " + refused[0].what
    if ranked and ranked[0].confidence >= ranking.CONFIDENT:
        return ranked[0].finding.cause.id
    if case.value_ms < 1.5 * case.median_ms and not ranked:
        return "nothing stands out"
    grown = {n: float(ns[case.tail].mean() - ns[case.middle].mean()) for n, ns in window.requests.segments.items()}
    segment = max(grown, key=lambda name: grown[name])
    names = window.requests.names["worker"]
    in_tail = np.bincount(names.codes[case.tail], minlength=len(names.names)) / max(1, case.tail.sum())
    everywhere = np.bincount(names.codes, minlength=len(names.names)) / len(names.codes)
    odd = int(np.argmax(in_tail - everywhere))
    where = f", worker {names.names[odd]}" if in_tail[odd] > 0.8 and everywhere[odd] < 0.7 else ""
    return f"unknown (in {segment}{where})"


def _period(period: Period | None) -> dict[str, Any] | None:
    if period is None:
        return None
    return {
        "clock": period.clock.value,
        "length": period.length,
        "seconds": period.seconds,
        "cycles": period.cycles,
        "duty": period.duty,
        "amplitude_ms": period.amplitude_ms,
        "says": told(period),
    }


def _mix(mix: QuantileChange | None) -> dict[str, float] | None:
    if mix is None:
        return None
    return {
        "before_ms": mix.before_ns / MS,
        "after_ms": mix.after_ns / MS,
        "mix_ms": mix.mix_ns / MS,
        "rate_ms": mix.rate_ns / MS,
    }


def _contrast(c: Contrast) -> dict[str, Any]:
    return {
        "terms": [{"attribute": t.attribute, "value": t.value} for t in c.terms],
        "requests": c.requests,
        "slow": c.slow,
        "excess_ms": c.excess_ns / MS,
        "excess_share": c.excess_share,
        "coverage": c.coverage,
        "risk_ratio": c.risk_ratio,
        "lo": c.lo,
        "hi": c.hi,
        "false_share": c.false_share,
        "strata": f"{c.strata_held}/{c.strata_tested}",
    }


def _share(share: Share) -> dict[str, Any]:
    return {
        "name": share.name,
        "kind": share.kind,
        "at_quantile_ms": share.at_quantile_ms,
        "at_median_ms": share.at_median_ms,
    }
