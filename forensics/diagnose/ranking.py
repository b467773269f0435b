"""Which findings to tell, in which order, and how sure to be of each.

Theory of operation. Several causes may claim the same milliseconds (a neighbour and a quota both make threads wait), so
findings are grouped by what they claim, and within a group the evidence decides. Between groups the gain decides: how
much lower the quantile would be without it. Confidence is the probability that the finding is right, by a logistic
map of four figures - the evidence's score, the share of the tail's excess that is explained, the distance to the
next finding, and whether the tail changed with time at all - fitted on recorded faults (`bench/lineup`), never a
p-value."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from forensics.diagnose.case import Case, Finding

GAIN_MIN_SHARE = 0.03
"""Of the quantile: a smaller gain is not worth a line."""
GAIN_MIN_MS = 0.3
CONFIDENT = 0.6
"""From here on a finding is told as the answer."""
WEIGHTS = {"bias": -3.2, "score": 3.2, "explained": 2.0, "margin": 1.2, "changed": 1.6}
"""Of the map; see `bench/lineup/README.md` for how they were fitted."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A finding with its place: `explained` is the share of the excess that it takes away."""

    finding: Finding
    confidence: float
    explained: float


def rank(case: Case, findings: Sequence[Finding], changed: bool) -> list[Ranked]:
    """The findings worth telling, the best first."""
    excess_ms = max(case.value_ms - case.median_ms, 1e-6)
    floor_ms = max(GAIN_MIN_MS, GAIN_MIN_SHARE * case.value_ms)
    told = [f for f in findings if f.delta_ms >= floor_ms]
    ordered = sorted(told, key=lambda f: -weight(f))
    ranked = []
    for place, finding in enumerate(ordered):
        explained = min(1.0, finding.delta_ms / excess_ms)
        rivals = [weight(other) for i, other in enumerate(ordered) if i != place]
        margin = 1 - min(1.0, max(rivals, default=0.0) / max(weight(finding), 1e-9))
        ranked.append(Ranked(finding, confidence(finding.score, explained, margin, changed), explained))
    return ranked


def weight(finding: Finding) -> float:
    """What findings are ordered by: the gain, as far as the evidence stands for it."""
    return finding.delta_ms * finding.score**2


def confidence(score: float, explained: float, margin: float, changed: bool) -> float:
    """The probability that a finding with these figures is right."""
    w = WEIGHTS
    x = w["bias"] + w["score"] * score + w["explained"] * explained + w["margin"] * margin + w["changed"] * changed
    return 1 / (1 + math.exp(-x))
