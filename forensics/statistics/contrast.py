"""For whom is it slow? Values of attributes that slow requests have and others have not, ranked by milliseconds.

Theory of operation. A request's *excess* is its latency less what was to be expected of its size under its load: by
raw latency the size would always win. Slow is whose excess stands out, 2 % of requests and up to a tenth. For each
value of each attribute it is asked how much excess the slow requests that have it hold, beyond what they would if they
were as the others of their stratum. That is in milliseconds, and a share of all: a value that makes slow 40 times as
probable and explains half a per cent is noise, one with 3 times and 80 per cent is the answer.

Pairs of values are looked at too. A pair is told only if its requests are clearly worse off than those of either value
(1.3 times the excess each); and if it explains nearly all that a value does, that value is not told any more.

Slow requests come in clumps: those behind one stall share a worker and a minute. Given `clusters` (a second, say, or a
batch), what a clump says is counted once. Without them intervals and p-values believe too much.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from math import exp

import numpy as np

from forensics.statistics.attributes import Amounts, Names, Term, named
from forensics.statistics.risk import SLOW_MIN, Side, compare
from forensics.statistics.robust import Floats, Ints, Mask, quantile, spread

SLOW_P = 0.98
SUPPORT_MIN = 30
"""A value of fewer requests is not looked at."""
FALSE_MAX = 0.05
"""So many of the contrasts that are told may be false (Benjamini and Hochberg)."""
DENSER = 1.3
ALL_OF_IT = 0.8
SAME = 0.95
BEAM = 30
TOLD_MAX = 20
_STANDS_OUT = 6
_SLOW_P_LEAST = 0.9


@dataclass(frozen=True, slots=True)
class Contrast:
    """Requests that share `terms`, and how much slower than the others they are.

    `excess_ns` is what slow requests among them have beyond what they would as the others of their stratum, summed, and
    `excess_share` that of all slow excess. `coverage` is the share of slow requests that are among them. `risk_ratio`
    is how many times as probable slow is, with 95 % between `lo` and `hi`; `false_share` is the share of false ones
    among the contrasts that are at least as sure. In `strata_held` of `strata_tested` strata it is so too, by half as
    much (of the logarithm) or more. `also` are terms of (nearly) the same requests: nothing here can tell them apart.
    """

    terms: tuple[Term, ...]
    requests: int
    slow: int
    excess_ns: float
    excess_share: float
    coverage: float
    risk_ratio: float
    lo: float
    hi: float
    p_value: float
    false_share: float
    strata_held: int
    strata_tested: int
    also: tuple[tuple[Term, ...], ...] = ()


def slow_from(excess_ns: Ints, slow_p: float = SLOW_P) -> float:
    """The excess beyond which a request is slow: the quantile, or less where more requests stand out.

    Standing out is 6 standard deviations (by the median deviation) beyond the median; at most a tenth of all are slow.
    With the quantile alone, the worst of two causes would hide the other.
    """
    outstanding = float(np.median(excess_ns)) + _STANDS_OUT * spread(excess_ns)
    return min(quantile(excess_ns, slow_p), max(quantile(excess_ns, _SLOW_P_LEAST), outstanding))


@dataclass(frozen=True, slots=True)
class _Group:
    """Requests that share terms: who they are, and their slow ones (indices into the table's)."""

    terms: tuple[Term, ...]
    members: Mask
    slow: Mask
    requests: int
    excess_ns: float

    @property
    def is_pair(self) -> bool:
        """Two terms, not one."""
        return len(self.terms) == 2


def mine(
    excess_ns: Ints,
    attributes: Mapping[str, Names | Amounts],
    strata: Ints | None = None,
    *,
    clusters: Ints | None = None,
    slow_p: float = SLOW_P,
    support_min: int = SUPPORT_MIN,
    false_max: float = FALSE_MAX,
) -> list[Contrast]:
    """What slow requests have in common, the most excess first; at most 20 contrasts.

    All arrays are [requests]: `excess_ns` is latency less expectation, which may be negative; `strata` and `clusters`
    are codes >= 0. Comparisons are made within the strata (load and size, say), so what only goes with them is not
    told.

    Measured on 5 minutes of 26 requests/s with 14 attributes, clusters of 10 s or 1 s, 60 runs each (not those of the
    tests), and the excess of the service time: a slow worker, a slow pair of worker and tenant, a slow rare tenant and
    long inputs came first in all, with 0 to 4 others told in all 60; clean runs told something in 1 of 120. By latency,
    where those who wait for the slow are slow too, they came first in 50 to 59 of 60, and clean runs told something in
    9 of 120. So take the excess of the segment that Euler's allocation points to. Without clusters, the latency of
    clean runs told something in 13 of 20.
    10,000 requests with 20 attributes take 0.1 s, a million 3 s.
    """
    if len(excess_ns) < 2 * support_min:
        return []
    slow = excess_ns > slow_from(excess_ns, slow_p)
    table = _Table.of(excess_ns, slow, strata, clusters)
    if table.total_ns <= 0:
        return []
    by_name = named(attributes, slow)
    singles = []
    for name, attribute in by_name.items():
        codes = attribute.codes[table.order]
        for code in np.flatnonzero(
            np.bincount(codes + 1, minlength=len(attribute.names) + 1)[1:] >= support_min
        ).tolist():
            group = table.group((Term(name, attribute.names[code]),), codes == code)
            if group.requests < len(codes):
                singles.append(group)
    beam = sorted((g for g in singles if g.excess_ns > 0), key=lambda g: -g.excess_ns)[:BEAM]
    pairs = table.pairs(beam, support_min)
    worth = _collapsed([g for g in singles if g.excess_ns > 0], [g for g in pairs if g.excess_ns > 0])
    everybody, sides = table.everybody(), {g.terms[0]: table.side(g) for g in beam}
    told = [
        contrast
        for group in worth
        if (contrast := table.contrast(group, everybody, [sides[t] for t in group.terms] if group.is_pair else ()))
    ]
    # All that were looked at count, also those that were not worth a test; pairs for themselves, as there are so many.
    told = [
        *_with_false_share([c for c in told if len(c.terms) == 1], len(singles)),
        *_with_false_share([c for c in told if len(c.terms) == 2], len(beam) * (len(beam) - 1) // 2),
    ]
    sure = [c for c in told if c.false_share <= false_max]
    groups = {g.terms: g for g in worth}
    return _merged(sorted(sure, key=lambda c: -c.excess_ns), groups)[:TOLD_MAX]


@dataclass(frozen=True, slots=True)
class _Table:
    """The requests in the order of their strata, so that a stratum is a slice."""

    order: Ints
    borders: Ints  # [strata + 1]
    slow_at: Ints  # [slow], where the slow ones are
    slow_stratum: Ints  # [slow]
    slow_ns: Floats  # [slow], their excess beyond the median of their stratum
    clusters: Ints | None
    cluster_count: int

    @property
    def total_ns(self) -> float:
        return float(self.slow_ns.sum())

    @classmethod
    def of(cls, excess_ns: Ints, slow: Mask, strata: Ints | None, clusters: Ints | None) -> "_Table":
        count = len(excess_ns)
        stratum = np.zeros(count, dtype=np.int64) if strata is None else np.unique(strata, return_inverse=True)[1]
        order = np.argsort(stratum, kind="stable")
        borders = np.concatenate([[0], np.cumsum(np.bincount(stratum))])
        ordered = excess_ns[order]
        usual = np.array([np.median(ordered[a:b]) for a, b in pairwise(borders)])
        slow_at = np.flatnonzero(slow[order])
        slow_stratum = stratum[order[slow_at]]
        grouped = None if clusters is None else np.unique(clusters[order], return_inverse=True)[1]
        return cls(
            order,
            borders,
            slow_at,
            slow_stratum,
            np.maximum(ordered[slow_at] - usual[slow_stratum], 0.0),
            grouped,
            0 if grouped is None else int(grouped.max()) + 1,
        )

    def group(self, terms: tuple[Term, ...], members: Mask) -> _Group:
        """The requests `members`, with their excess beyond that of the others of their strata."""
        slow = members[self.slow_at]
        mine = self._counts(members)
        others = np.diff(self.borders) - mine
        per_stratum = np.bincount(self.slow_stratum, self.slow_ns, minlength=len(mine))
        mine_ns = np.bincount(self.slow_stratum[slow], self.slow_ns[slow], minlength=len(mine))
        expected = mine * (per_stratum - mine_ns) / np.maximum(others, 1)
        # Where a stratum has no others, there is nothing to compare with.
        return _Group(terms, members, slow, int(mine.sum()), float((mine_ns - expected)[others > 0].sum()))

    def pairs(self, beam: list[_Group], support_min: int) -> list[_Group]:
        """The pairs of different attributes that could be worth telling."""
        if not beam:
            return []
        together = np.stack([g.slow for g in beam]).astype(np.float32)
        slow_count = together @ together.T
        most_ns = (together * self.slow_ns.astype(np.float32)) @ together.T
        found = []
        for i, j in combinations(range(len(beam)), 2):
            a, b = beam[i], beam[j]
            if a.terms[0].attribute == b.terms[0].attribute or slow_count[i, j] < SLOW_MIN:
                continue
            members = a.members & b.members
            count = int(np.count_nonzero(members))
            density = DENSER * max(a.excess_ns / a.requests, b.excess_ns / b.requests)
            # No pair has more than all the slow excess of its requests: if that is too thin, so is what remains.
            if count < support_min or count in (a.requests, b.requests) or most_ns[i, j] / count < density:
                continue
            group = self.group(tuple(sorted(a.terms + b.terms)), members)
            if group.excess_ns / group.requests >= density:
                found.append(group)
        return found

    def contrast(self, group: _Group, everybody: Side, parents: Sequence[Side]) -> Contrast | None:
        """The group with all that is told of it; None if too few slow requests, or clumps of them, are in it.

        A pair is as sure as the less sure of: its second value matters among those with the first, and the other way.
        """
        mine = self.side(group)
        risk = compare(mine, everybody - mine)
        if risk is None:
            return None
        p_value = risk.p_value
        for parent in parents:
            within = compare(mine, parent - mine)
            p_value = max(p_value, within.p_value if within is not None and within.ratio > 1 else 1.0)
        held, tested = self._strata(group, risk.ratio)
        return Contrast(
            terms=group.terms,
            requests=group.requests,
            slow=int(group.slow.sum()),
            excess_ns=group.excess_ns,
            excess_share=group.excess_ns / self.total_ns,
            coverage=int(group.slow.sum()) / len(self.slow_at),
            risk_ratio=risk.ratio,
            lo=risk.ratio * exp(-1.96 * risk.error),
            hi=risk.ratio * exp(1.96 * risk.error),
            p_value=p_value,
            false_share=1.0,
            strata_held=held,
            strata_tested=tested,
        )

    def side(self, group: _Group) -> Side:
        """The group as a side of a comparison."""
        if self.clusters is None:
            return Side(group.requests, int(group.slow.sum()))
        return Side(
            group.requests,
            int(group.slow.sum()),
            np.bincount(self.clusters[group.members], minlength=self.cluster_count),
            np.bincount(self.clusters[self.slow_at[group.slow]], minlength=self.cluster_count),
        )

    def everybody(self) -> Side:
        """All requests, as a side that another can be taken from."""
        if self.clusters is None:
            return Side(len(self.order), len(self.slow_at))
        return Side(
            len(self.order),
            len(self.slow_at),
            np.bincount(self.clusters, minlength=self.cluster_count),
            np.bincount(self.clusters[self.slow_at], minlength=self.cluster_count),
        )

    def _strata(self, group: _Group, ratio: float) -> tuple[int, int]:
        """In how many strata slow is more probable by the root of the ratio or more, and how many can tell."""
        mine = self._counts(group.members)
        others = np.diff(self.borders) - mine
        slow_mine, slow_others = (
            np.bincount(self.slow_stratum[which], minlength=len(mine)) for which in (group.slow, ~group.slow)
        )
        tested = (mine >= 10) & (others >= 10) & (slow_mine + slow_others >= SLOW_MIN)
        held = tested & (slow_mine * others > ratio**0.5 * slow_others * mine)
        return int(held.sum()), int(tested.sum())

    def _counts(self, members: Mask) -> Ints:
        """How many members each stratum has, [strata]."""
        return np.array([np.count_nonzero(members[a:b]) for a, b in pairwise(self.borders)])


def _collapsed(singles: list[_Group], pairs: list[_Group]) -> list[_Group]:
    """All pairs, and the single values that no pair explains nearly all of."""
    explained = {
        (term,)
        for pair in pairs
        for single in singles
        for term in pair.terms
        if single.terms == (term,) and pair.excess_ns >= ALL_OF_IT * single.excess_ns
    }
    return [g for g in singles if g.terms not in explained] + pairs


def _with_false_share(contrasts: list[Contrast], tests: int) -> list[Contrast]:
    """Benjamini and Hochberg: p times the tests, over how many are as sure; never less than of a surer one."""
    ordered = sorted(contrasts, key=lambda c: c.p_value)
    result = []
    least = 1.0
    for rank in range(len(ordered), 0, -1):
        least = min(least, ordered[rank - 1].p_value * tests / rank)
        result.append(replace(ordered[rank - 1], false_share=least))
    return result


def _merged(ranked: list[Contrast], groups: Mapping[tuple[Term, ...], _Group]) -> list[Contrast]:
    """Contrasts of (nearly) the same requests in one."""
    told: list[Contrast] = []
    for contrast in ranked:
        slow, requests = groups[contrast.terms].slow, contrast.requests
        for i, other in enumerate(told):
            both = groups[other.terms].slow
            alike = np.count_nonzero(slow & both) >= SAME * np.count_nonzero(slow | both)
            if alike and min(requests, other.requests) >= SAME * max(requests, other.requests):
                told[i] = replace(other, also=(*other.also, contrast.terms))
                break
        else:
            told.append(contrast)
    return told
