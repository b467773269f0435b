"""B5: passes wait for a thread that is held."""

import numpy as np

from forensics.diagnose.case import MS, Case, Evidence, Finding

WAIT_MIN_MS = 2.0
SQL = """SELECT quantile_cont(dispatch_ns, 0.5) / 1e6 AS p50_ms, quantile_cont(dispatch_ns, 0.99) / 1e6 AS p99_ms,
quantile_cont(pre_ns, 0.5) / 1e6 AS pre_p50_ms, quantile_cont(pre_ns, 0.99) / 1e6 AS pre_p99_ms FROM requests WHERE
answered"""


def detect(case: Case) -> Finding | None:
    """Time between sealed and begun, or in the gateway's preparation, in which nothing of ours computed."""
    r = case.window.requests
    best: tuple[float, str] | None = None
    for name in ("dispatch", "pre"):
        ns = r.segments[name]
        excess_ms = float(ns[case.tail].mean() - np.median(ns)) / MS
        if excess_ms > WAIT_MIN_MS and (best is None or excess_ms > best[0]):
            best = excess_ms, name
    if best is None:
        return None
    excess_ms, name = best
    waited = np.clip(r.segments[name] - np.median(r.segments[name]), 0, None).astype(np.int64)
    share = excess_ms / case.all_excess_ms
    return case.finding(
        "B5",
        case.gain(r.e2e - waited),
        0.4 + 0.6 * max(0.0, min(1.0, share)),
        f"requests of the tail wait {excess_ms:.0f} ms for a thread (segment {name})",
        Evidence(f"{share:.0%} of the tail's excess", {"tail_ms": excess_ms, "share": share}, SQL),
        interval_us=case.when(waited > WAIT_MIN_MS * MS),
        exemplars=case.exemplars(waited),
    )
