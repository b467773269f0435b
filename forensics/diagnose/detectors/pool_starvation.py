"""B5: passes wait for a thread that is held."""

import numpy as np

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import MS, Case, Evidence, Finding

WAIT_MIN_MS = 2.0
SQL = """SELECT quantile_cont(dispatch_ns, 0.5) / 1e6 AS p50_ms, quantile_cont(dispatch_ns, 0.99) / 1e6 AS p99_ms,
quantile_cont(pre_ns, 0.5) / 1e6 AS pre_p50_ms, quantile_cont(pre_ns, 0.99) / 1e6 AS pre_p99_ms FROM requests WHERE
answered"""


def detect(case: Case) -> Finding | None:
    """Time in which a sealed batch waited for the device's thread, or a request for one of the gateway's, and nothing
    of ours computed there."""
    r = case.window.requests
    waits = {"dispatch": case.spent(Spent.DISPATCH), "pre": r.segments["pre"]}
    beyond = {name: np.clip(ns - np.median(ns), 0, None).astype(np.int64) for name, ns in waits.items()}
    name = max(beyond, key=lambda name: float(beyond[name][case.tail].mean()))
    waited = beyond[name]
    tail_ms = float(waited[case.tail].mean()) / MS
    if tail_ms < WAIT_MIN_MS:
        return None
    share = tail_ms / case.all_excess_ms
    gain = case.gain(r.e2e - waited)
    if name == "dispatch":
        gaps = np.clip(case.window.batches.numbers["w4"] - case.window.batches.numbers["w3"], 0, None)
        gain = case.larger(gain, case.gain(case.without(gaps_ns=np.where(gaps > WAIT_MIN_MS * MS, gaps, 0))))
    return case.finding(
        "B5",
        gain,
        0.55 + 0.45 * max(0.0, min(1.0, share)),
        f"requests of the tail wait {tail_ms:.0f} ms for a thread that computes nothing (segment {name})",
        Evidence(f"{share:.0%} of the tail's excess", {"tail_ms": tail_ms, "share": share}, SQL),
        interval_us=case.when(waited > WAIT_MIN_MS * MS),
        exemplars=case.exemplars(waited),
    )
