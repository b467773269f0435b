"""D1: more threads compute than there are cores."""

from forensics.diagnose.case import Case, Evidence, Finding
from forensics.diagnose.machine import cores_of
from forensics.diagnose.service import Part

CORES_RISE = 1.3

SQL = """SELECT worker, time_bucket(INTERVAL 1 second, sealed_at) AS second, count(*) AS passes,
sum(device_thread_ns) / sum(predicted) AS times_predicted, sum(runq_ns) / sum(device_thread_ns) AS runq_share,
sum(cpu_ns) / sum(device_thread_ns) AS cpu_share FROM batches WHERE predicted > 0 GROUP BY ALL ORDER BY second"""


def detect(case: Case) -> Finding | None:
    """Passes that are slow, and processes of ours that use more cores for a pass than there are, or than they
    should."""
    slow = case.slowness
    threads = max(1, case.window.torch_threads) * max(1, case.workers)
    used, usual = slow.cores_per_pass
    more = used / max(usual, 0.3)
    many = threads > cores_of(case)
    if not slow.passes.any() or slow.share_of(Part.BLOCKED) > 0.5 or (more < CORES_RISE and not many):
        return None
    created, before = slow.worker_figure("threads")
    involuntary, seldom = slow.worker_figure("nivcsw")
    switched = involuntary / max(seldom, 1.0)
    score = 0.3 + 0.3 * (many or created - before > 0.5) + 0.25 * min(1.0, max(0.0, more - 1)) + 0.15 * (switched > 3)
    told = (
        f"{created - before:.0f} threads more than before" if created - before > 0.5 else f"{threads} compute threads"
    )
    return case.finding(
        "D1",
        slow.gain,
        score * (0.6 if slow.foreign_share > 0.25 else 1.0),
        f"{told} of {case.workers} workers share {cores_of(case):.0f} cores",
        Evidence(
            f"a pass takes {used:.1f} cores of its process, {usual:.1f} before; beside that of another worker it takes "
            f"{1 + slow.crowding:.2f} times as long as alone",
            {
                "cores_per_pass": used,
                "usual": usual,
                "threads": created,
                "crowding": slow.crowding,
                "switches": switched,
            },
            SQL,
        ),
        interval_us=slow.interval_us,
        exemplars=case.exemplars(case.spent_slowly),
    )
