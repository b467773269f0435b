"""F1: Redis stood still: a fork, a slow command, a frozen host."""

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import Case, Evidence, Finding

SQL = """SELECT proc, inst, started_at, duration_ns / 1e6 AS ms FROM events WHERE kind IN ('redis_lag',
'redis_stood_still')
ORDER BY started_at"""


def detect(case: Case) -> Finding | None:
    """Stalls of Redis that several processes saw at once, PINGs included."""
    broker = case.broker
    if not broker.stalls or not broker.pings:
        return None
    longest_ms = max(end - start for start, end, _ in broker.stalls) / 1e3
    return case.finding(
        "F1",
        case.broker_gain,
        0.2 + 0.4 * broker.pinged + 0.4 * broker.pinged * broker.shared,
        f"Redis answers nobody for up to {longest_ms:.0f} ms, {len(broker.stalls)} times",
        Evidence(
            f"{broker.shared:.0%} of the stalled time was seen by several processes, {broker.pinged:.0%} by PINGs too",
            {"stalls": len(broker.stalls), "longest_ms": longest_ms, "tail_ms": case.excess_ms(Spent.BROKER)},
            SQL,
        ),
        interval_us=broker.interval_us,
        exemplars=case.exemplars(case.spent(Spent.BROKER)),
    )
