"""G1: a worker died, and its requests were run again."""

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import MS, Case, Evidence, Finding

SQL = """SELECT id, attempt, lost_attempt_ns / 1e6 AS lost_ms, e2e_ns / 1e6 AS ms FROM requests
WHERE attempt > 1 ORDER BY lost_ms DESC"""


def detect(case: Case) -> Finding | None:
    """Requests of the tail that needed a second worker; and those that waited for the ones that died."""
    r = case.window.requests
    again = (r.numbers["attempt"] > 1) & (r.segments["lost_attempt"] > 0)
    if not again.any():
        return None
    lost = case.spent(Spent.RETRY)
    workers = [e.attrs.get("worker", "") for e in case.events("worker_lost")]
    return case.finding(
        "G1",
        case.gain_of(Spent.RETRY),
        0.6 + 0.4 * min(1.0, case.share(Spent.RETRY)),
        f"{int(again.sum())} requests were lost with a worker and run again, {float(lost[again].mean()) / MS:.0f} ms "
        f"later",
        Evidence(
            f"{int((again & case.tail).sum())} of {int(case.tail.sum())} requests of the tail; workers lost: "
            f"{len(set(workers))}",
            {"again": int(again.sum()), "tail_ms": case.excess_ms(Spent.RETRY)},
            SQL,
        ),
        interval_us=case.when(again),
        culprits={"worker": sorted(set(filter(None, workers)))},
        exemplars=case.exemplars(lost),
    )
