"""B1: garbage collection stops a worker."""

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import MS, Case, Evidence, Finding
from forensics.diagnose.replay import in_gaps
from forensics.diagnose.service import Part

PAUSE_MIN_MS = 5.0
SQL = """SELECT inst AS worker, started_at, duration_ns / 1e6 AS ms FROM events
WHERE kind = 'gc' AND proc = 'worker' ORDER BY ms DESC"""


def detect(case: Case) -> Finding | None:
    """Collections of some length in workers, and the requests that they took time from."""
    pauses = [e for e in case.events("gc", "worker") if e.ns >= PAUSE_MIN_MS * MS]
    spent = case.spent(Spent.GC)
    if not pauses or not spent.any():
        return None
    longest_ms = max(p.ns for p in pauses) / MS
    hit = int((case.tail & (spent > 0)).sum())
    return case.finding(
        "B1",
        case.gain_of(parts=(Part.GC,), gaps_ns=in_gaps(case.window, pauses)),
        0.5 + 0.5 * case.share(Spent.GC),
        f"{len(pauses)} garbage collections of up to {longest_ms:.0f} ms stop the worker and everybody behind it",
        Evidence(
            f"{hit} of {case.tail.sum()} requests of the tail lost time to a collection, "
            f"{case.excess_ms(Spent.GC):.1f} ms on average",
            {"pauses": len(pauses), "longest_ms": longest_ms, "tail_ms": case.excess_ms(Spent.GC)},
            SQL,
        ),
        interval_us=case.when(spent > 0),
        culprits={"worker": case.most(pauses)},
        exemplars=case.exemplars(spent),
    )
