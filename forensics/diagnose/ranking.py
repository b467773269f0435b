"""Which findings to tell, in which order, and how sure to be of each.

Theory of operation. Several causes may claim the same milliseconds (a neighbour and a quota both make threads wait), so
the evidence decides between them, and between others what the tail would be saved. Where the latency changed, the
question is what made it change: what had taken as much before is no answer. Confidence is the probability that the
finding is right, by a logistic map of four figures - the evidence's score, the share of the tail's excess that is
explained, the distance to the next finding, and whether the tail changed with time at all - fitted on recorded
faults (`bench/lineup`), never a p-value."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forensics.diagnose.case import Case, Finding, Gain
from forensics.diagnose.when import Onset
from forensics.diagnose.window import Bools

GAIN_MIN_SHARE = 0.03
"""Of the quantile: a smaller gain is not worth a line."""
GAIN_MIN_MS = 0.3
CONFIDENT = 0.6
"""From here on a finding is told as the answer."""
NEWS_WEIGHT = 0.8
SLOW_SHARE = 0.05
SLOW_MIN = 10
WEIGHTS = {"bias": -3.2, "score": 3.2, "explained": 2.0, "margin": 1.2, "changed": 1.6}
"""Of the map; see `bench/lineup/README.md` for how they were fitted."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A finding with its place. `explained` is the share of the tail's excess that would be saved; `news` is from 0
    to 1: how far it was not there before the latency changed, 1 where nothing changed."""

    finding: Finding
    confidence: float
    explained: float
    news: float


def rank(case: Case, findings: Sequence[Finding], onset: Onset | None) -> list[Ranked]:
    """The findings worth telling, the best first."""
    floor_ms = max(GAIN_MIN_MS, GAIN_MIN_SHARE * case.value_ms)
    told = [(f, news(case, f.gain, onset)) for f in findings if f.gain.tail_ms >= floor_ms]
    ordered = sorted(told, key=lambda pair: -weight(*pair))
    ranked = []
    for place, (finding, new) in enumerate(ordered):
        explained = min(1.0, finding.gain.tail_ms / case.all_excess_ms)
        rivals = [weight(*other) for i, other in enumerate(ordered) if i != place]
        margin = 1 - min(1.0, max(rivals, default=0.0) / max(weight(finding, new), 1e-9))
        sure = confidence(finding.score * new, explained, margin, onset is not None)
        ranked.append(Ranked(finding, sure, explained, new))
    return ranked


def news(case: Case, gain: Gain, onset: Onset | None) -> float:
    """How far what would be saved is new since the change, from 0 to 1: by the slow requests before and after it."""
    if onset is None:
        return 1.0
    at = case.window.requests.at_us
    before = _saved_by_the_slow(case, gain, at < onset.lo_us)
    after = _saved_by_the_slow(case, gain, (at >= onset.at_us) & (at < onset.until_us))
    return 1 - min(1.0, before / max(after, 1.0))


def _saved_by_the_slow(case: Case, gain: Gain, among: Bools) -> float:
    chosen = np.flatnonzero(among)
    if not len(chosen):
        return 0.0
    count = max(SLOW_MIN, round(SLOW_SHARE * len(chosen)))
    slowest = chosen[np.argsort(-case.e2e_ms[chosen], kind="stable")[:count]]
    return max(0.0, float(gain.saved[slowest].mean()))


def weight(finding: Finding, new: float) -> float:
    """What findings are ordered by: what the tail would be saved, as far as the evidence stands for it and it is
    new."""
    return finding.gain.tail_ms * finding.score**2 * (1 - NEWS_WEIGHT * (1 - new))


def confidence(score: float, explained: float, margin: float, changed: bool) -> float:
    """The probability that a finding with these figures is right."""
    w = WEIGHTS
    x = w["bias"] + w["score"] * score + w["explained"] * explained + w["margin"] * margin + w["changed"] * changed
    return 1 / (1 + math.exp(-x))
