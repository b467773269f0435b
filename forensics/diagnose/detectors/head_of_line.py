"""A5: one huge request blocks those behind it."""

import numpy as np

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import MS, Case, Evidence, Finding
from forensics.diagnose.service import Part

TIMES_MEDIAN = 4.0
SHARE_OF_PASSES_MAX = 0.03
SQL = """SELECT worker, batch_id, sealed_at, device_thread_ns / 1e6 AS ms, predicted / 1e6 AS predicted_ms, cost,
members
FROM batches ORDER BY device_thread_ns DESC LIMIT 10"""


def detect(case: Case) -> Finding | None:
    """Few passes, long as their size explains, behind which most of the waiting is done by requests that are small."""
    batches, passes = case.window.batches, case.attribution.passes
    if not len(batches):
        return None
    normal = passes.parts[Part.NORMAL]
    usual = float(np.median(normal))
    huge = (normal > TIMES_MEDIAN * usual) & (batches.longest > TIMES_MEDIAN * np.median(batches.longest))
    if not huge.any() or huge.mean() > SHARE_OF_PASSES_MAX:
        return None
    blocked = case.attribution.blocked_on
    behind = float(blocked[huge].sum() / max(1.0, blocked.sum()))
    r = case.window.requests
    victims = case.tail & ~(huge[np.maximum(r.batch, 0)] & (r.batch >= 0))
    innocent = float(victims.sum() / case.tail.sum())
    queued = case.share(Spent.QUEUED)
    less = np.where(huge, normal - usual, 0)
    worst = np.argsort(-np.where(huge, blocked, 0), kind="stable")[:3]
    culprits = [int(i) for b in worst for i in _largest(case, int(b))]
    return case.finding(
        "A5",
        case.gain(case.without(passes_ns=less)),
        0.2 + 0.3 * behind + 0.3 * innocent + 0.2 * max(0.0, min(1.0, queued)),
        f"{int(huge.sum())} huge requests block those behind them, for {float(normal[huge].mean()) / MS:.0f} ms each",
        Evidence(
            f"{behind:.0%} of all waiting is behind {huge.mean():.1%} of the passes; {innocent:.0%} of the tail are "
            f"others",
            {"huge_passes": int(huge.sum()), "waiting_behind": behind, "victims": innocent},
            SQL,
        ),
        interval_us=case.when(victims),
        culprits={"request": [str(i) for i in culprits]},
        exemplars=case.exemplars(np.where(victims, case.spent(Spent.QUEUED), 0)),
    )


def _largest(case: Case, batch: int) -> list[int]:
    """The largest member of a pass."""
    members = np.flatnonzero(case.window.requests.batch == batch)
    return [int(members[np.argmax(case.window.requests.cost[members])])] if len(members) else []
