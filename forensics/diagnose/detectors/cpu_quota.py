"""D3: the quota of the container throttles a process."""

from forensics.diagnose.case import MS, Case, Evidence, Finding

THROTTLED_MIN_MS = 20.0
"""Milliseconds a second that a process of ours stood throttled."""
SQL = """SELECT proc, inst, time_bucket(INTERVAL 1 second, "at") AS second, sum(throttled_ns) / 1e6 AS throttled_ms
FROM resources GROUP BY ALL ORDER BY throttled_ms DESC"""


def detect(case: Case) -> Finding | None:
    """Periods in which the kernel held one of our processes back, by its own count."""
    slow = case.slowness
    throttled, usual = slow.worker_figure("throttled")
    if not slow.passes.any() or throttled - usual < THROTTLED_MIN_MS * MS:
        return None
    return case.finding(
        "D3",
        slow.gain,
        0.9,
        f"the kernel throttled our processes for {throttled / MS:.0f} ms of each slow second: the CPU quota is used up",
        Evidence(
            "throttled time by the cgroup's own count", {"throttled_ms": throttled / MS, "else_ms": usual / MS}, SQL
        ),
        interval_us=slow.interval_us,
        culprits={"worker": slow.slow_workers()},
        exemplars=case.exemplars(case.spent_slowly),
    )
