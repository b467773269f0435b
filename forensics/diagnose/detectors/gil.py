"""B6: another thread of the worker's process holds the interpreter."""

import numpy as np

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import MS, Case, Evidence, Finding
from forensics.diagnose.service import Part

LAGS_MIN = 20
QUANTA_MS = 40.0
"""The interpreter is handed over every 5 ms; a stall is some such turns, a blocking call takes longer."""
LAG_SQL = """SELECT inst AS gateway, time_bucket(INTERVAL 1 second, started_at) AS second, count(*) AS stalls,
median(duration_ns) / 1e6 AS ms FROM events WHERE kind = 'loop_lag' AND proc = 'gateway' GROUP BY ALL ORDER BY second"""
CORES_MIN = 0.2
"""CPU beside the passes, in cores, that tells of another busy thread."""
SQL = """SELECT worker, time_bucket(INTERVAL 1 second, sealed_at) AS second, count(*) AS passes,
sum(device_thread_ns) / sum(predicted) AS times_predicted, sum(runq_ns) / sum(device_thread_ns) AS runq_share,
sum(cpu_ns) / sum(device_thread_ns) AS cpu_share FROM batches WHERE predicted > 0 GROUP BY ALL ORDER BY second"""


def detect(case: Case) -> Finding | None:
    """A process that computes beside its work, which stands still meanwhile: a worker, or a gateway."""
    return _in_workers(case) or _in_gateway(case)


def _in_gateway(case: Case) -> Finding | None:
    """Many short stalls of a gateway's loop, and CPU of its process that its requests do not explain."""
    lags = case.events("loop_lag", "gateway")
    spent = case.spent(Spent.GATEWAY_LOOP)
    if len(lags) < LAGS_MIN or not spent.any():
        return None
    stalled = np.zeros(case.bins, dtype=np.bool_)
    stalled[np.unique(case.bin_of(np.array([lag.at_us for lag in lags])))] = True
    rise = 0.0
    for samples in case.samples("gateway"):
        used = case.sampled(samples, "cpu_process") / 100
        known = ~np.isnan(used)
        if (known & stalled).any() and (known & ~stalled).any():
            rise = max(rise, float(used[known & stalled].mean() - used[known & ~stalled].mean()))
    typical_ms = float(np.median([lag.ns for lag in lags])) / MS
    if rise < CORES_MIN or typical_ms > QUANTA_MS:
        return None
    return case.finding(
        "B6",
        case.gain_of(Spent.GATEWAY_LOOP),
        0.5 + 0.5 * min(1.0, rise),
        f"the gateway's process computes {rise:.1f} cores beside its requests, which wait for the interpreter",
        Evidence(
            f"{len(lags)} stalls of its loop, {typical_ms:.0f} ms in the median: the interpreter is handed over every "
            f"5 ms",
            {"stalls": len(lags), "typical_ms": typical_ms, "cores_beside": rise},
            LAG_SQL,
        ),
        interval_us=case.when(spent > 0),
        culprits={"gateway": case.most(lags)},
        exemplars=case.exemplars(spent),
    )


def _in_workers(case: Case) -> Finding | None:
    """Passes that stand still without waiting for a core, while their process computes beside them."""
    slow = case.slowness
    blocked = slow.share_of(Part.BLOCKED)
    beside, usual = slow.idle_cpu
    if not slow.passes.any() or blocked < 0.3 or beside - usual < CORES_MIN:
        return None
    return case.finding(
        "B6",
        slow.gain,
        0.4 + 0.3 * blocked + 0.3 * min(1.0, beside - usual),
        f"the worker's process computes {beside - usual:.1f} cores beside its passes, which stand still meanwhile",
        Evidence(
            f"{blocked:.0%} of what passes took beyond the normal they neither computed nor waited for a core",
            {"blocked_share": blocked, "cores_beside": beside, "cores_beside_else": usual},
            SQL,
        ),
        interval_us=slow.interval_us,
        culprits={"worker": [slow.odd_worker]} if slow.odd_worker else {},
        exemplars=case.exemplars(case.spent_slowly),
    )
