"""F2: Redis delays writes, and answers everything else."""

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import Case, Evidence, Finding

SQL = """SELECT time_bucket(INTERVAL 1 second, started_at) AS second, max(g4 - g3) / 1e6 AS accept_ms
FROM requests WHERE g4 > 0 GROUP BY ALL ORDER BY second"""


def detect(case: Case) -> Finding | None:
    """Slow writes of several processes at once, while PINGs are answered."""
    broker = case.broker
    if not broker.stalls:
        return None
    longest_ms = max(end - start for start, end, _ in broker.stalls) / 1e3
    return case.finding(
        "F2",
        case.broker_gain,
        0.2 + 0.8 * (1 - broker.pinged) * broker.shared,
        f"Redis delays writes by up to {longest_ms:.0f} ms, {len(broker.stalls)} times, and answers PINGs meanwhile",
        Evidence(
            f"{broker.pinged:.0%} of the stalled time had late PINGs, {broker.shared:.0%} was seen by several "
            f"processes",
            {"stalls": len(broker.stalls), "longest_ms": longest_ms, "tail_ms": case.excess_ms(Spent.BROKER)},
            SQL,
        ),
        interval_us=broker.interval_us,
        exemplars=case.exemplars(case.spent(Spent.BROKER)),
    )
