"""What blurs a comparison: too few runs, runs not in turns, another load, another machine, other settings."""

from collections.abc import Iterator, Sequence
from statistics import fmean, median

from forensics.run_figures import Run, quantile_name
from forensics.statistics.runs import best_p, runs_needed

APART = 0.85
"""If this share of the pairs of runs have A before B, or B before A, the sides were not interleaved."""
STEAL_MAX, STEAL_GAP_MAX, RUNQ_GAP_MAX, LOAD_GAP_MAX = 0.05, 0.01, 0.02, 0.05
BEYOND_MIN = 10
"""With fewer requests than this beyond a quantile, it is made of single requests."""


def doubts_of(a: Sequence[Run], b: Sequence[Run], *, share: float, confidence: float, sliced: bool) -> list[str]:
    """Everything that should be known before the numbers are believed, each once; `share` is the quantile's."""
    told = [
        *_run_counts(len(a), len(b), confidence, sliced),
        *_order(a, b, sliced),
        *_machine(a, b),
        *_load(a, b, share),
        *_sizes(a, b, share),
        *_unlike(a, b),
        *(doubt for run in (*a, *b) for doubt in run.doubts),
    ]
    return list(dict.fromkeys(told))


def differing_facts(a: Sequence[Run], b: Sequence[Run]) -> dict[str, tuple[str, str]]:
    """The versions and settings that all runs of a side agree on, and the sides do not: A's and B's."""
    of_a, of_b = _values(a), _values(b)
    found = {}
    for fact in sorted({*of_a, *of_b}):
        left, right = of_a.get(fact, {"(none)"}), of_b.get(fact, {"(none)"})
        if left != right and len(left) == len(right) == 1:
            found[fact] = (min(left), min(right))
    return found


def _run_counts(of_a: int, of_b: int, confidence: float, sliced: bool) -> Iterator[str]:
    best = best_p(of_a, of_b)
    what = "slices" if sliced else "runs"
    count = f"{of_a} {what} a side give" if of_a == of_b else f"{of_a} {what} of A and {of_b} of B give"
    if sliced:
        yield (
            "there is one recording a side, cut into slices of time: they share its machine, its start and its moment, "
            "so the interval covers the noise within a recording, not that between recordings. Repeat the runs, in "
            "turns"
        )
    if best > 1 - confidence:
        yield (
            f"{count} at best p = {best:.2g}: there is no interval of {confidence:.0%}, and nothing can be shown. "
            f"At least {runs_needed(confidence)} a side are needed; 8 are a good number"
        )
    elif not sliced and best > 0.01:
        yield f"{count} at best p = {best:.2g}: only a difference that every run shows counts. 8 are a good number"


def _order(a: Sequence[Run], b: Sequence[Run], sliced: bool) -> Iterator[str]:
    earlier = fmean(1.0 if one.first_us < other.first_us else 0.5 if one.first_us == other.first_us else 0.0
                    for one in a for other in b)  # fmt: skip
    if max(earlier, 1 - earlier) < APART or (len(a) == len(b) == 1 and not sliced):
        return
    first, then = ("A", "B") if earlier > 0.5 else ("B", "A")
    yield (
        f"the sides were not interleaved: {first} ran before {then}. Whatever changed on the machine meanwhile looks "
        "like a difference between them; record in turns, A B B A"
    )


def _machine(a: Sequence[Run], b: Sequence[Run]) -> Iterator[str]:
    for what, gap_max, values in (
        ("time stolen by the host of the virtual machine", STEAL_GAP_MAX, [[r.steal for r in side] for side in (a, b)]),
        ("time in the run queue of device threads", RUNQ_GAP_MAX, [[r.runq for r in side] for side in (a, b)]),
    ):
        known = [[v for v in side if v is not None] for side in values]
        if not all(known):
            continue
        of_a, of_b = map(median, known)
        if abs(of_a - of_b) > gap_max:
            yield (
                f"the machine was not the same: {what} was {of_a:.1%} in A and {of_b:.1%} in B. "
                "Part of the difference may be the neighbours'"
            )
        elif what.startswith("time stolen") and min(of_a, of_b) > STEAL_MAX:
            yield f"a neighbour took {of_a:.1%} (A) and {of_b:.1%} (B) of the machine's time: the runs are noisy"


def _load(a: Sequence[Run], b: Sequence[Run], share: float) -> Iterator[str]:
    of_a, of_b = (median(r.offered_per_s for r in side) for side in (a, b))
    if abs(of_b / of_a - 1) > LOAD_GAP_MAX:
        yield (
            f"the load was not the same: {of_a:.4g} requests/s in A and {of_b:.4g} in B. Latency follows load, so "
            "compare latency only if the difference in load is what you changed"
        )
    lost_a, lost_b = (fmean((r.errors + r.left) / max(r.requests, 1) for r in side) for side in (a, b))
    if abs(lost_b - lost_a) > (1 - share) / 4:
        kind = "A" if lost_a > lost_b else "B"
        yield (
            f"{lost_a:.2%} of A's requests and {lost_b:.2%} of B's failed or were left by their clients. Latency is "
            f"that of the others, which flatters {kind} if the slow ones are those that failed"
        )


def _sizes(a: Sequence[Run], b: Sequence[Run], share: float) -> Iterator[str]:
    smallest = min((*a, *b), key=lambda run: len(run.e2e_ns))
    count = len(smallest.e2e_ns)
    if count * (1 - share) < BEYOND_MIN:
        yield (
            f"{smallest.name} has {count:,} answered requests, of which {count * (1 - share):.1f} lie beyond "
            f"{quantile_name(share)}: so far out, few requests decide. Make the runs longer"
        )


def _unlike(a: Sequence[Run], b: Sequence[Run]) -> Iterator[str]:
    for side, runs in (("A", a), ("B", b)):
        for fact, values in _values(runs).items():
            if len(values) > 1:
                yield f"the runs of {side} are not alike: {fact} is {' or '.join(sorted(values))}"


def _values(runs: Sequence[Run]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for run in runs:
        for fact, value in run.facts.items():
            found.setdefault(fact, set()).add(value)
    return found
