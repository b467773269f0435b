"""B4: large payloads take time to parse and to send, for their own request and for those beside it."""

import numpy as np

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import MS, Case, Evidence, Finding
from forensics.diagnose.window import Bools

LARGE_BYTES = 256 << 10
TIMES_MEDIAN = 8
NEAR_US = 1_000_000
SEGMENTS = ("recv", "pre", "pull", "render", "respond")
SQL = """SELECT bytes_in >= 262144 AS large, count(*) AS requests, avg(recv_ns + pre_ns) / 1e6 AS in_ms,
avg(pull_ns) / 1e6 AS pull_ms, quantile_cont(e2e_ns, 0.99) / 1e6 AS p99_ms FROM requests GROUP BY ALL"""


def big_bodies(case: Case) -> Bools:
    """The requests with a body that is large, also beside the usual ones."""
    numbers = case.window.requests.numbers
    size = np.maximum(numbers["bytes_in"], numbers["bytes_out"])
    big: Bools = size >= max(LARGE_BYTES, TIMES_MEDIAN * float(np.median(size)))
    return big


def detect(case: Case) -> Finding | None:
    """Large bodies in the tail, or beside the stalls of the gateway's loop in it."""
    big = big_bodies(case)
    if not big.any():
        return None
    r = case.window.requests
    handled = sum((r.segments[name] for name in SEGMENTS), np.zeros(len(r), dtype=np.int64))
    stalled = case.spent(Spent.GATEWAY_LOOP, Spent.WORKER_LOOP)
    at = np.sort(r.at_us[big])
    place = np.searchsorted(at, r.at_us)
    nearest = np.minimum(
        np.abs(r.at_us - at[np.clip(place - 1, 0, len(at) - 1)]), np.abs(at[np.clip(place, 0, len(at) - 1)] - r.at_us)
    )
    usual = float(np.median(handled))
    cost = np.where(big, np.maximum(handled - usual, 0), 0) + np.where(nearest < NEAR_US, stalled, 0)
    tail_ms = float(cost[case.tail].mean()) / MS
    share = tail_ms / case.all_excess_ms
    return case.finding(
        "B4",
        case.gain((r.e2e - np.minimum(cost, r.e2e)).astype(np.int64)),
        0.5 + 0.5 * min(1.0, share),
        f"{int(big.sum())} requests with bodies of {LARGE_BYTES >> 10} KiB and more hold up the rest",
        Evidence(
            f"{int((big & case.tail).sum())} of {int(case.tail.sum())} requests of the tail have such a body; reading, "
            f"parsing and sending take {float(handled[big].mean()) / MS:.0f} ms of them, and {usual / MS:.1f} ms of a "
            f"usual one",
            {"large": int(big.sum()), "tail_ms": tail_ms},
            SQL,
        ),
        interval_us=case.when(big),
        culprits={"request": [str(i) for i in np.flatnonzero(big)[:3]]},
        exemplars=case.exemplars(cost.astype(np.int64)),
    )
