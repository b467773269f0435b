"""D4: everything computes slower: clock, heat, power, a slower host."""

from forensics.diagnose.case import Case, Evidence, Finding
from forensics.diagnose.service import Part

SQL = """SELECT worker, time_bucket(INTERVAL 1 second, sealed_at) AS second, count(*) AS passes,
sum(device_thread_ns) / sum(predicted) AS times_predicted, sum(runq_ns) / sum(device_thread_ns) AS runq_share,
sum(cpu_ns) / sum(device_thread_ns) AS cpu_share FROM batches WHERE predicted > 0 GROUP BY ALL ORDER BY second"""


LASTING = 0.5
"""Share of the seconds between the first slow one and the last that are slow."""


def detect(case: Case) -> Finding | None:
    """Passes of all workers burn more CPU time for the same work, and nobody else wants the cores."""
    slow = case.slowness
    burnt = slow.share_of(Part.SLOW_COMPUTE)
    if not slow.passes.any() or burnt < 0.5 or slow.odd_worker:
        return None
    ratio = slow.ratio(slow.passes)
    score = 0.35 + 0.35 * burnt + 0.3 * min(1.0, max(0.0, slow.python_ratio - 1) / 0.3)
    # A slower clock lasts; a slow second here and there is something else.
    score *= 0.5 + 0.5 * min(1.0, slow.density / LASTING)
    against = []
    if slow.foreign_share > 0.15:
        score *= 0.6
        against.append(Evidence("others used the cores more", {"cores": slow.foreign_rise}, against=True))
    return case.finding(
        "D4",
        slow.gain,
        score,
        f"the same passes take {ratio:.2f} times as long, and as much more CPU time, on every worker",
        Evidence(
            f"{burnt:.0%} of what passes took beyond the normal they computed; pure Python took "
            f"{slow.python_ratio:.2f} "
            "times as long",
            {"ratio": ratio, "burnt_share": burnt, "python_ratio": slow.python_ratio},
            SQL,
        ),
        *against,
        interval_us=slow.interval_us,
        culprits={"worker": slow.slow_workers()},
        exemplars=case.exemplars(case.spent_slowly),
    )
