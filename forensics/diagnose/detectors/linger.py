"""A3: batches wait for company while the device is free."""

import numpy as np

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import MS, Case, Evidence, Finding
from forensics.diagnose.replay import idle_before

WAIT_MIN_MS = 1.0
SQL = """SELECT close_reason, count(*) AS batches, avg(requests) AS requests, quantile_cont(oldest_wait_ns, 0.5) /
1e6 AS ms
FROM batches GROUP BY ALL ORDER BY batches DESC"""


def detect(case: Case) -> Finding | None:
    """Time between decoded and sealed in which the device was free."""
    spent = case.spent(Spent.LINGER)
    waited = spent[spent > WAIT_MIN_MS * MS]
    if len(waited) < 10:
        return None
    longest_ms = float(np.quantile(waited, 0.9)) / MS
    reasons = case.window.batches.names["close_reason"]
    lingered = float(reasons.where("linger").mean())
    gain = case.gain_of(gaps_ns=idle_before(case.window, case.attribution, [Spent.LINGER]))
    return case.finding(
        "A3",
        case.larger(gain, case.gain_of(Spent.LINGER)),
        0.55 + 0.25 * min(1.0, case.share(Spent.LINGER)) + 0.2 * lingered,
        f"batches wait up to {longest_ms:.0f} ms for company while the device is free",
        Evidence(
            f"{len(waited)} requests waited with the device free; {lingered:.0%} of the batches were sealed by the "
            f"delay",
            {"p90_wait_ms": longest_ms, "sealed_by_delay": lingered, "tail_ms": case.excess_ms(Spent.LINGER)},
            SQL,
        ),
        interval_us=case.when(spent > max(WAIT_MIN_MS, longest_ms / 2) * MS),
        exemplars=case.exemplars(spent),
    )
