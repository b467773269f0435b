"""B6: another thread of the worker's process holds the interpreter."""

from forensics.diagnose.case import Case, Evidence, Finding
from forensics.diagnose.service import Part

CORES_MIN = 0.2
"""CPU beside the passes, in cores, that tells of another busy thread."""
SQL = """SELECT worker, time_bucket(INTERVAL 1 second, sealed_at) AS second, count(*) AS passes,
sum(device_thread_ns) / sum(predicted) AS times_predicted, sum(runq_ns) / sum(device_thread_ns) AS runq_share,
sum(cpu_ns) / sum(device_thread_ns) AS cpu_share FROM batches WHERE predicted > 0 GROUP BY ALL ORDER BY second"""


def detect(case: Case) -> Finding | None:
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
