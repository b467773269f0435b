"""E1: something that runs by the clock takes the machine."""

from forensics.diagnose.case import Case, Evidence, Finding
from forensics.diagnose.machine import short_of_cores

SQL = """SELECT time_bucket(INTERVAL 1 second, "at") AS second, max(list_sum(cpu_user) + list_sum(cpu_system)) AS
all_cores,
sum(cpu_process) AS ours, max(psi_cpu) AS psi_cpu, max(psi_io) AS psi_io FROM resources GROUP BY ALL ORDER BY second"""
FOREIGN_MIN = 0.1


def detect(case: Case) -> Finding | None:
    """Slow episodes at equal distances in time, in which others use the machine."""
    slow = case.slowness
    if not slow.period_s or slow.foreign_share < FOREIGN_MIN:
        return None
    return case.finding(
        "E1",
        slow.gain,
        0.5 + 0.25 * min(1.0, 2 * slow.foreign_share) + 0.25 * min(1.0, 2 * short_of_cores(case)),
        f"every {slow.period_s:.1f} s others take the machine for a while",
        Evidence(
            f"slow episodes begin every {slow.period_s:.1f} s; others use {slow.foreign_rise:.1f} cores more in them",
            {"period_s": slow.period_s, "foreign_cores": slow.foreign_rise},
            SQL,
        ),
        interval_us=slow.interval_us,
        period_s=slow.period_s,
        exemplars=case.exemplars(case.spent_slowly),
    )
