"""E1: something that runs by the clock takes the machine."""

from forensics.diagnose.case import Case, Evidence, Finding
from forensics.diagnose.machine import foreign, short_of_cores

SQL = """SELECT time_bucket(INTERVAL 1 second, "at") AS second, max(list_sum(cpu_user) + list_sum(cpu_system)) AS
all_cores,
sum(cpu_process) AS ours, max(psi_cpu) AS psi_cpu, max(psi_io) AS psi_io FROM resources GROUP BY ALL ORDER BY second"""
CYCLES_MIN = 3


def detect(case: Case) -> Finding | None:
    """A period in the slow requests by the time of day, with the machine busy or its disk waited for in that phase."""
    period = case.period
    slow = case.slowness
    if period is None or period.clock != "time" or period.cycles < CYCLES_MIN or not slow.passes.any():
        return None
    phases = slow.compare(foreign(case))
    rise = slow.foreign_share
    score = 0.35 + 0.35 * min(1.0, 2 * rise) + 0.3 * min(1.0, 2 * short_of_cores(case))
    return case.finding(
        "E1",
        slow.gain,
        score,
        f"every {period.seconds:.1f} s others take the machine for a while",
        Evidence(
            f"slow requests come back every {period.seconds:.1f} s, {period.cycles} times",
            {"period_s": period.seconds, "foreign_cores_slow": phases[0] / 100, "foreign_cores_else": phases[1] / 100},
            SQL,
        ),
        interval_us=slow.interval_us,
        period_s=period.seconds,
        exemplars=case.exemplars(case.spent_slowly),
    )
