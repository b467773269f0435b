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

from forensics.diagnose.case import MIDDLE, MS, Case, Finding, Gain
from forensics.diagnose.when import Onset
from forensics.diagnose.window import Bools

GAIN_MIN_SHARE = 0.03
"""Of the quantile: a smaller gain is not worth a line."""
GAIN_MIN_MS = 0.3
CONFIDENT = 0.6
"""From here on a finding is told as the answer."""
SHARE_MIN = 0.2
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
    judged = []
    for f in findings:
        explained = share_of(case, f.gain, onset)
        if f.gain.tail_ms >= floor_ms or explained >= SHARE_MIN:
            new = news(case, f.gain, onset)
            judged.append((f, explained, new, weight(f, explained, new)))
    judged.sort(key=lambda j: -j[3])
    ranked = []
    for place, (finding, explained, new, heavy) in enumerate(judged):
        rivals = [other[3] for i, other in enumerate(judged) if i != place]
        margin = 1 - min(1.0, max(rivals, default=0.0) / max(heavy, 1e-9))
        sure = confidence(finding.score * new, explained, margin, onset is not None)
        ranked.append(Ranked(finding, sure, explained, new))
    return ranked


def share_of(case: Case, gain: Gain, onset: Onset | None) -> float:
    """The share of what is to be explained that would be saved, from 0 to 1.

    That is the excess of the tail over the middle; and where the middle itself rose, that rise as well: a longer
    delay of everybody may not be seen in the tail at all, and is still what happened.
    """
    of_tail = min(1.0, max(0.0, gain.tail_ms / case.all_excess_ms))
    if onset is None or not onset.of_everybody:
        return of_tail
    at = case.window.requests.at_us
    after = np.flatnonzero((at >= onset.at_us) & (at < onset.until_us))
    if not len(after):
        return of_tail
    low, high = np.quantile(case.e2e_ms[after], MIDDLE)
    middle = after[(case.e2e_ms[after] >= low) & (case.e2e_ms[after] <= high)]
    rise_ms = max(onset.after_ms - onset.before_ms, 1e-6)
    of_middle = min(1.0, max(0.0, float(gain.saved[middle].mean()) / MS / rise_ms))
    return (of_tail + 2 * of_middle) / 3


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


def weight(finding: Finding, explained: float, new: float) -> float:
    """What findings are ordered by: what they explain, as far as the evidence stands for it and it is new."""
    return explained * finding.score**2 * (1 - NEWS_WEIGHT * (1 - new))


def confidence(score: float, explained: float, margin: float, changed: bool) -> float:
    """The probability that a finding with these figures is right."""
    w = WEIGHTS
    x = w["bias"] + w["score"] * score + w["explained"] * explained + w["margin"] * margin + w["changed"] * changed
    return 1 / (1 + math.exp(-x))
