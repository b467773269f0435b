"""D1: more threads compute than there are cores."""

from forensics.diagnose.case import Case, Evidence, Finding
from forensics.diagnose.machine import cores_of

SQL = """SELECT worker, time_bucket(INTERVAL 1 second, sealed_at) AS second, count(*) AS passes,
sum(device_thread_ns) / sum(predicted) AS times_predicted, sum(runq_ns) / sum(device_thread_ns) AS runq_share,
sum(cpu_ns) / sum(device_thread_ns) AS cpu_share FROM batches WHERE predicted > 0 GROUP BY ALL ORDER BY second"""


def detect(case: Case) -> Finding | None:
    """Passes that are slow beside those of other workers, and threads of ours that are more than the cores."""
    slow = case.slowness
    threads = max(1, case.window.torch_threads) * max(1, case.workers)
    many = threads > cores_of(case)
    involuntary, usual = slow.worker_figure("nivcsw")
    rise = involuntary / max(usual, 1.0)
    if not slow.passes.any() or (not many and slow.crowding < 0.3) or slow.foreign_share > 0.25:
        return None
    score = 0.3 + (0.35 if many else 0.0) + 0.25 * min(1.0, slow.crowding) + 0.1 * min(1.0, rise / 5)
    return case.finding(
        "D1",
        slow.gain,
        score,
        f"{threads} compute threads of {case.workers} workers share {cores_of(case):.0f} cores",
        Evidence(
            f"a pass beside that of another worker takes {1 + slow.crowding:.2f} times as long as one alone",
            {"threads": threads, "cores": cores_of(case), "crowding": slow.crowding, "involuntary_switches": rise},
            SQL,
        ),
        interval_us=slow.interval_us,
        exemplars=case.exemplars(case.spent_slowly),
    )
