"""A7: one worker holds requests that another could run."""

import numpy as np

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import MS, Case, Evidence, Finding

HELD_MIN_MS = 1.0
SQL = """SELECT worker, count(*) AS requests, quantile_cont(batch_wait_ns, 0.5) / 1e6 AS held_p50_ms,
quantile_cont(batch_wait_ns, 0.99) / 1e6 AS held_p99_ms FROM requests WHERE answered GROUP BY ALL"""


def detect(case: Case) -> Finding | None:
    """Waits behind the passes of the worker that had already taken the request, while another worker was free."""
    if case.workers < 2:
        return None
    r = case.window.requests
    held = np.minimum(r.segments["batch_wait"], case.spent(Spent.QUEUED))
    idle = case.others_idle
    wasted = (held * idle).astype(np.int64)
    if float(wasted[case.tail].mean()) / MS < HELD_MIN_MS:
        return None
    by_worker = {name: float(wasted[r.names["worker"].where(name)].sum()) for name in r.names["worker"].names if name}
    worst = max(by_worker, key=lambda name: by_worker[name])
    share = float(wasted[case.tail].mean() - wasted[case.middle].mean()) / MS / case.all_excess_ms
    return case.finding(
        "A7",
        case.gain(r.e2e - wasted),
        0.35 + 0.65 * max(0.0, min(1.0, share)),
        f"worker {worst} holds requests that wait behind its passes while another worker is free",
        Evidence(
            f"{float(wasted[case.tail].mean()) / MS:.1f} ms of a request of the tail, after it was taken",
            {"tail_ms": float(wasted[case.tail].mean()) / MS, "share": share},
            SQL,
        ),
        interval_us=case.when(wasted > HELD_MIN_MS * MS),
        culprits={"worker": [worst]},
        exemplars=case.exemplars(wasted),
    )
