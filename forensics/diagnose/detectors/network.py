"""F4: the network between one process and Redis is slow."""

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import Case, Evidence, Finding

RAISED_MIN_MS = 1.0
TIMES_OTHERS = 3.0
SQL = """SELECT worker, quantile_cont(confirm_ns, 0.5) / 1e6 AS p50_ms, quantile_cont(confirm_ns, 0.99) / 1e6 AS p99_ms
FROM attempts WHERE confirm_ns > 0 GROUP BY ALL"""


def detect(case: Case) -> Finding | None:
    """Round trips to Redis that one process has longer for some time, and others have not."""
    raised = case.broker.raised
    if len(raised) < 2:
        return None
    kinds: dict[str, float] = {}
    for trips in case.broker.trips:
        kinds[trips.proc] = max(kinds.get(trips.proc, 0.0), raised[trips.inst])
    worst = max(raised, key=lambda inst: raised[inst])
    # The others: those of the other kind, for all workers may be behind the same slow way.
    proc = next(trips.proc for trips in case.broker.trips if trips.inst == worst)
    others = max((ms for kind, ms in kinds.items() if kind != proc), default=0.0)
    if raised[worst] < RAISED_MIN_MS or raised[worst] < TIMES_OTHERS * others:
        return None
    return case.finding(
        "F4",
        case.broker_gain,
        0.85,
        f"the way from {proc} {worst} to Redis and back takes {raised[worst]:.1f} ms longer than usual",
        Evidence(
            f"the {'gateway' if proc == 'worker' else 'workers'} saw {others:.1f} ms more at most",
            {"raised_ms": raised[worst], "others_ms": others},
            SQL,
        ),
        interval_us=case.when(case.spent(Spent.BROKER) > RAISED_MIN_MS * 1e6),
        culprits={proc: [worst]},
        exemplars=case.exemplars(case.spent(Spent.BROKER)),
    )
