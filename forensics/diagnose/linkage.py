"""The rules of the field, with the numbers of this case: what latency, throughput and utilisation say together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from forensics.diagnose.case import Case
from forensics.diagnose.when import Onset
from forensics.diagnose.window import Bools
from forensics.statistics.robust import quantile

RISEN = 1.2
FALLEN = 0.9
BUSY, IDLE = 0.85, 0.5
WAITING_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule whose condition holds: what it says, and the figures that it was decided by."""

    says: str
    numbers: Mapping[str, float] = field(default_factory=dict)


def rules_of(case: Case, onset: Onset | None) -> Sequence[Rule]:
    """Those of the rules that apply: of a change, and of the whole window."""
    return [*(_of_change(case, onset) if onset is not None else []), *_of_level(case)]


def _of_change(case: Case, onset: Onset) -> list[Rule]:
    at = case.window.requests.at_us
    before, after = at < onset.lo_us, (at >= onset.at_us) & (at < onset.until_us)
    if min(before.sum(), after.sum()) < 2:
        return []
    latency = _quantile(case, after) / max(_quantile(case, before), 1e-9)
    throughput = _per_s(case, after) / max(_per_s(case, before), 1e-9)
    numbers = {
        "latency": latency,
        "throughput": throughput,
        "busy": _busy(case, after),
        "busy_before": _busy(case, before),
    }
    if latency < RISEN:
        return []
    if throughput < FALLEN:
        says = "latency rose and throughput fell: something is saturated, or held by a lock"
    elif throughput > RISEN:
        says = "latency rose with the load: there is more to do, or too little to do it with"
    else:
        says = "latency rose and throughput did not change: single requests are slow, not the whole"
    return [Rule(f"{says} ({latency:.2f} times the latency, {throughput:.2f} times the throughput)", numbers)]


def _of_level(case: Case) -> list[Rule]:
    r = case.window.requests
    everybody = np.ones(len(r), dtype=np.bool_)
    busy = _busy(case, everybody)
    queue = sum(float(r.segments[name][case.tail].sum()) for name in ("stream_wait", "batch_wait"))
    compute = sum(float(r.segments[name][case.tail].sum()) for name in ("collate", "forward"))
    total = float(r.e2e[case.tail].sum())
    elsewhere = 1 - (queue + compute) / max(total, 1.0)
    numbers = {"busy": busy, "queue_share": queue / max(total, 1.0), "compute_share": compute / max(total, 1.0)}
    if busy >= BUSY:
        return [Rule(f"the devices compute {busy:.0%} of the time: more load only makes the queue longer", numbers)]
    if busy < IDLE:
        idle = f"the devices compute only {busy:.0%} of the time, and the tail"
        if queue > WAITING_SHARE * total:
            return [Rule(f"{idle} waits in the queue: bursts, stalls or batching", numbers)]
        if elsewhere > WAITING_SHARE:
            where = "input and output, Redis, or the gateway"
            return [Rule(f"{idle} spends {elsewhere:.0%} neither queued nor computed: {where}", numbers)]
    return []


def _quantile(case: Case, among: Bools) -> float:
    return quantile(case.e2e_ms[among], case.quantile)


def _per_s(case: Case, among: Bools) -> float:
    at = case.window.requests.at_us[among]
    ended = at + case.window.requests.e2e[among] // 1000
    # Answered per second: by when they ended, since arrivals do not slow down with the system.
    return len(at) / max(1e-3, float(ended.max() - at.min()) / 1e6)


def _busy(case: Case, among: Bools) -> float:
    seconds = np.unique(case.request_bin[among])
    inside = seconds[(seconds > 0) & (seconds < case.bins - 1)]
    chosen = inside if len(inside) else seconds
    return float(case.busy[chosen].mean()) if len(chosen) else 0.0
