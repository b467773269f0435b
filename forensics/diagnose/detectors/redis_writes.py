"""F2: Redis delays writes, and answers everything else."""

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import Case, Evidence, Finding

SQL = """SELECT time_bucket(INTERVAL 1 second, started_at) AS second, max(g4 - g3) / 1e6 AS accept_ms
FROM requests WHERE g4 > 0 GROUP BY ALL ORDER BY second"""


def detect(case: Case) -> Finding | None:
    """Writes of gateways and of workers that were slow at the same moments, while PINGs were answered."""
    stalls = case.broker.unwritten
    if not stalls:
        return None
    longest_ms = max(end - start for start, end in stalls) / 1e3
    gain = case.broker.gain(stalls)
    return case.finding(
        "F2",
        gain,
        0.55 + 0.4 * min(1.0, gain.tail_ms / case.all_excess_ms),
        f"Redis delays writes by up to {longest_ms:.0f} ms, {len(stalls)} times, and answers PINGs meanwhile",
        Evidence(
            "gateways and workers wait for the confirmation of a write at the same moments",
            {"stalls": len(stalls), "longest_ms": longest_ms, "tail_ms": gain.tail_ms},
            SQL,
        ),
        interval_us=(stalls[0][0], stalls[-1][1]),
        exemplars=case.exemplars(case.spent(Spent.BROKER)),
    )
