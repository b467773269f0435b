"""B2: garbage collection stops a gateway."""

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import MS, Case, Evidence, Finding

PAUSE_MIN_MS = 5.0
SQL = """SELECT inst AS gateway, started_at, duration_ns / 1e6 AS ms FROM events
WHERE kind = 'gc' AND proc = 'gateway' ORDER BY ms DESC"""


def detect(case: Case) -> Finding | None:
    """Collections of some length in gateways, and the requests that stood there meanwhile."""
    pauses = [e for e in case.events("gc", "gateway") if e.ns >= PAUSE_MIN_MS * MS]
    spent = case.spent(Spent.GATEWAY_GC)
    if not pauses or not spent.any():
        return None
    longest_ms = max(p.ns for p in pauses) / MS
    return case.finding(
        "B2",
        case.gain_of(Spent.GATEWAY_GC),
        0.5 + 0.5 * case.share(Spent.GATEWAY_GC),
        f"{len(pauses)} garbage collections of up to {longest_ms:.0f} ms stop the gateway and all it has in flight",
        Evidence(
            f"they took {case.excess_ms(Spent.GATEWAY_GC):.1f} ms of a request of the tail",
            {"pauses": len(pauses), "longest_ms": longest_ms, "tail_ms": case.excess_ms(Spent.GATEWAY_GC)},
            SQL,
        ),
        interval_us=case.when(spent > 0),
        culprits={"gateway": case.most(pauses)},
        exemplars=case.exemplars(spent),
    )
