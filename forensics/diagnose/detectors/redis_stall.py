"""F1: Redis stood still: a fork, a slow command, a frozen host."""

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import Case, Evidence, Finding

SQL = """SELECT proc, inst, started_at, duration_ns / 1e6 AS ms FROM events
WHERE kind IN ('redis_lag', 'redis_stood_still') ORDER BY started_at"""


def detect(case: Case) -> Finding | None:
    """PINGs of gateways and of workers that were late at the same moments."""
    stalls = case.broker.still
    if not stalls:
        return None
    longest_ms = max(end - start for start, end in stalls) / 1e3
    gain = case.broker.gain(stalls)
    return case.finding(
        "F1",
        gain,
        0.6 + 0.4 * min(1.0, gain.tail_ms / case.all_excess_ms),
        f"Redis answers nobody for up to {longest_ms:.0f} ms, {len(stalls)} times",
        Evidence(
            "gateways and workers wait for a PING at the same moments",
            {"stalls": len(stalls), "longest_ms": longest_ms, "tail_ms": gain.tail_ms},
            SQL,
        ),
        interval_us=(stalls[0][0], stalls[-1][1]),
        exemplars=case.exemplars(case.spent(Spent.BROKER)),
    )
