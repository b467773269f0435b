"""Passes that are slow because something is done for the first time."""

import numpy as np

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import MS, Case, Evidence, Finding
from forensics.diagnose.service import Part
from forensics.diagnose.window import Bools

SQL = """SELECT worker, nth, shape_seen, sealed_at, device_thread_ns / 1e6 AS ms, predicted / 1e6 AS predicted_ms, cost
FROM batches WHERE nth <= 3 OR NOT shape_seen ORDER BY ms DESC"""


def cold_finding(case: Case, cause: str, marked: Bools, what: str) -> Finding | None:
    """The finding that the cold part of these passes explains the tail."""
    parts = np.where(marked, case.attribution.passes.parts[Part.COLD], 0)
    if not parts.any():
        return None
    r = case.window.requests
    batch = np.maximum(r.batch, 0)
    own = np.where(r.batch >= 0, parts[batch], 0)
    all_cold = case.attribution.passes.parts[Part.COLD].sum()
    share = float(parts.sum() / max(1, all_cold))
    slow = parts > 0
    return case.finding(
        cause,
        case.gain_of(parts=(Part.COLD,), passes=marked),
        0.5 + 0.5 * min(1.0, case.share(Spent.COLD)) * share,
        f"{int(slow.sum())} times {what} take {float(parts[slow].mean()) / MS:.0f} ms longer than later ones",
        Evidence(
            f"{share:.0%} of what cold passes take",
            {"passes": int(slow.sum()), "beyond_ms": float(parts[slow].mean()) / MS},
            SQL,
        ),
        interval_us=case.when(own > 0),
        culprits={"worker": case.workers_of(slow)},
        exemplars=case.exemplars(case.spent(Spent.COLD)),
    )
