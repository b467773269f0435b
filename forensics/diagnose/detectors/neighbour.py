"""D2: a neighbour on the machine takes the cores."""

from forensics.diagnose.case import Case, Evidence, Finding
from forensics.diagnose.service import Part
from forensics.diagnose.slowness import FOREIGN_MIN

SQL = """SELECT time_bucket(INTERVAL 1 second, "at") AS second, max(list_sum(cpu_user) + list_sum(cpu_system)) AS
all_cores,
sum(cpu_process) AS ours, max(list_sum(cpu_steal)) AS steal FROM resources GROUP BY ALL ORDER BY second"""


def detect(case: Case) -> Finding | None:
    """Threads that are ready to run and get no core, while processes that are not ours use more than else."""
    slow = case.slowness
    waits = slow.share_of(Part.CPU_WAIT)
    steal, usual_steal = slow.worker_figure("cpu_steal")
    if not slow.passes.any() or (slow.foreign_share < FOREIGN_MIN and steal - usual_steal < 10):
        return None
    if slow.odd_worker and not slow.is_crowded_out:
        return None
    throttled, _ = slow.worker_figure("throttled")
    score = 0.35 + 0.35 * min(1.0, slow.foreign_share * 1.5) + 0.3 * min(1.0, waits * 1.5)
    return case.finding(
        "D2",
        slow.gain,
        # A quota, or a job that runs by the clock, is the better name for the same wait.
        score * (0.3 if throttled > 20e6 else 0.6 if slow.period_s else 1.0),
        f"processes that are not ours use {slow.foreign_rise:.1f} cores more than else while passes are slow",
        Evidence(
            f"{waits:.0%} of what passes took beyond the normal they waited for a core",
            {"foreign_cores": slow.foreign_rise, "cpu_wait_share": waits, "steal_percent": steal},
            SQL,
        ),
        interval_us=slow.interval_us,
        exemplars=case.exemplars(case.spent_slowly),
    )
