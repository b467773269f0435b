"""A1: long inputs take long, and nothing is wrong."""

import numpy as np

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import MS, Case, Evidence, Finding
from forensics.diagnose.service import Part

TIMES_MEDIAN = 2.5
SQL = """SELECT floor(log2(cost + 1)) AS size, count(*) AS requests, quantile_cont(forward_ns, 0.5) / 1e6 AS forward_ms
FROM attempts WHERE cost > 0 GROUP BY ALL ORDER BY size"""


def detect(case: Case) -> Finding | None:
    """Requests of the tail that are long, and whose own computation takes as long as their size explains."""
    cost = case.window.requests.cost
    own = case.spent(Spent.OWN_COMPUTE)
    usual = float(np.median(cost[cost > 0])) if (cost > 0).any() else 0.0
    large = cost > TIMES_MEDIAN * max(usual, 1)
    if not usual or not (large & case.tail).any():
        return None
    extra = np.clip(own - np.median(own[~large]), 0, None).astype(np.int64)
    share = float(extra[case.tail].mean() - extra[case.middle].mean()) / MS / case.all_excess_ms
    in_tail = float((large & case.tail).sum() / case.tail.sum())
    among_all = float(large.mean())
    # With what size costs those behind: passes with a long input as long as the others.
    batch = case.window.requests.batch
    parts = case.attribution.passes.parts[Part.NORMAL]
    holds = np.zeros(len(parts), dtype=np.bool_)
    holds[batch[large & (batch >= 0)]] = True
    usual_ns = float(np.median(parts[~holds])) if (~holds).any() else 0.0
    longer = np.where(holds, np.clip(parts - usual_ns, 0, None), 0)
    return case.finding(
        "A1",
        case.gain(case.without(passes_ns=longer)),
        0.3 + 0.7 * max(0.0, min(share, in_tail)),
        f"{in_tail:.0%} of the tail are long inputs (over {TIMES_MEDIAN:g} times the median), {among_all:.0%} of all",
        Evidence(
            f"their own computation is {share:.0%} of the tail's excess, and takes what the model's law says",
            {"long_in_tail": in_tail, "long": among_all, "share": share},
            SQL,
        ),
        interval_us=case.when(large),
        exemplars=case.exemplars(extra),
    )
