"""A4: batches are too small for the load."""

import numpy as np

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import Case, Evidence, Finding

BUSY_MIN = 0.8
FIXED_MIN = 0.3
SQL = """SELECT worker, close_reason, count(*) AS batches, avg(rows) AS rows, max(rows_max) AS rows_max,
avg(waiting_after) AS left_waiting FROM batches GROUP BY ALL ORDER BY batches DESC"""


def detect(case: Case) -> Finding | None:
    """Full batches of a busy device that leave requests behind, and of whose time much is the same for any size."""
    batches, passes = case.window.batches, case.attribution.passes
    queued = case.spent(Spent.QUEUED)
    full = batches.names["close_reason"].where("full")
    # What waits is in the stream: a worker takes no more than its next batch.
    waiting = np.nan_to_num(case.mean_by_bin(queued, case.request_bin)) > np.median(batches.took)
    seconds = np.bincount(case.batch_bin, weights=full, minlength=case.bins)
    crowded = waiting & (seconds > 0.5 * np.bincount(case.batch_bin, minlength=case.bins)) & (case.busy >= BUSY_MIN)
    among = crowded[case.batch_bin] & full
    if not among.any() or not queued.any():
        return None
    fixed, per_row = 0.0, 1.0
    for model, law in passes.laws.items():
        mine = among & batches.names["model"].where(model)
        if mine.any():
            fixed = max(fixed, law.t0 / max(1.0, float(np.median(batches.took[mine]))))
            per_row = float(np.median(batches.numbers["rows"][mine]))
    before = ~crowded[case.batch_bin]
    # As passes were seen: the declared maximum does not tell of a limit that was changed while it ran.
    fill_before = float(np.quantile(batches.numbers["rows"][before], 0.98)) if before.any() else per_row
    shrunk = fill_before > 1.5 * per_row
    if fixed < FIXED_MIN and not shrunk:
        return None
    rise = case.rise(crowded)
    score = 0.3 + 0.3 * min(1.0, fixed * 1.5) + 0.3 * shrunk + 0.1 * (per_row <= 2)
    if rise > 1.25 and not shrunk:
        score *= 0.6
    hit = crowded[case.request_bin]
    return case.finding(
        "A4",
        case.gain(np.where(hit, case.window.requests.e2e - queued, case.window.requests.e2e)),
        score,
        f"batches of at most {per_row:.0f} are full and leave requests waiting; {fixed:.0%} of a pass is the same for "
        f"any size",
        Evidence(
            f"limit {fill_before:.0f} before, {per_row:.0f} in the slow seconds"
            if shrunk
            else "full while others wait",
            {"fixed_share": fixed, "rows": per_row, "rows_max_before": fill_before, "arrivals_rise": rise},
            SQL,
        ),
        interval_us=case.seconds_us(crowded),
        exemplars=case.exemplars(queued),
    )
