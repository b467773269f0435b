"""G5: clients repeat requests faster than these can be answered."""

import numpy as np

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import MS, Case, Evidence, Finding

REPEATED_MIN = 0.2
SQL = """SELECT time_bucket(INTERVAL 1 second, started_at) AS second, count(*) AS requests, count(DISTINCT label) AS
labels,
count(*) FILTER (WHERE NOT answered) AS unanswered FROM requests WHERE label <> '' GROUP BY ALL ORDER BY second"""


def detect(case: Case) -> Finding | None:
    """Seconds in which many requests had been sent before, under the same label."""
    share = case.repeated_by_second
    storm = share > REPEATED_MIN
    if storm.sum() < 2:
        return None
    queued = case.spent(Spent.QUEUED, Spent.BATCH_MATES)
    by_second = np.nan_to_num(case.mean_by_bin(queued, case.request_bin)) / MS
    crowded = (by_second > 2 * np.median(by_second) + 1) | storm
    hit = crowded[case.request_bin]
    repeated = float(share[storm].mean())
    return case.finding(
        "G5",
        case.gain(np.where(hit, case.window.requests.e2e - case.spent(Spent.QUEUED), case.window.requests.e2e)),
        0.5 + 0.5 * min(1.0, 2 * repeated),
        f"{repeated:.0%} of what arrives then are repetitions of requests that were not answered in time",
        Evidence("requests with a label that came before", {"repeated": repeated, "seconds": int(storm.sum())}, SQL),
        interval_us=case.seconds_us(storm),
        exemplars=case.exemplars(queued),
    )
