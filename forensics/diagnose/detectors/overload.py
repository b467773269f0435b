"""A6: more arrives than can be computed."""

import numpy as np

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import MS, Case, Evidence, Finding

RISE_MIN = 1.25
BUSY_MIN = 0.85
SATURATED = 0.9
MOSTLY = 0.7
QUEUED_MIN = 0.5
CALM = 0.75
SPARE_MIN = 0.15
ELSEWHERE = 0.5
SQL = """SELECT time_bucket(INTERVAL 1 second, started_at) AS second, count(*) AS arrived,
quantile_cont(queue_ns, 0.5) / 1e6 AS queue_ms, avg(inflight) AS inflight FROM requests GROUP BY ALL ORDER BY second"""


def detect(case: Case) -> Finding | None:
    """More arrives for a while, or all the time."""
    return _burst(case) or _saturated(case)


def _saturated(case: Case) -> Finding | None:
    """Devices that are busy all the time, and requests that spend most of theirs behind the passes of others."""
    queued = case.spent(Spent.QUEUED)
    share = float(queued.sum() / max(1, case.window.requests.e2e.sum()))
    inside = case.busy[1:-1] if case.bins > 3 else case.busy
    full = float(np.mean(inside >= SATURATED))
    if share < QUEUED_MIN or full < MOSTLY:
        return None
    per_s = len(case.window.requests) / case.window.seconds
    # Where it was not so at the same rate before, something else makes the devices slower than the load.
    spare = inside < CALM
    else_busy = case.bins > 3 and spare.mean() > SPARE_MIN
    score = 0.4 + 0.3 * full + 0.3 * share
    return case.finding(
        "A6",
        case.gain_of(Spent.QUEUED),
        score * (ELSEWHERE if else_busy else 1.0),
        f"{case.workers} workers are busy all the time: {per_s:.0f} requests/s are all that they can compute",
        Evidence(
            f"{share:.0%} of all time is spent behind the passes of others; the devices were busy in {full:.0%} of the "
            "seconds",
            {"per_s": per_s, "queued_share": share, "busy_seconds": full},
            SQL,
        ),
        interval_us=case.when(queued > 0),
        exemplars=case.exemplars(queued),
    )


def _burst(case: Case) -> Finding | None:
    """Seconds in which more came than in usual ones, the devices were busy all the time, and the queue grew."""
    queued = case.spent(Spent.QUEUED, Spent.BATCH_MATES)
    by_second = np.nan_to_num(case.mean_by_bin(queued, case.request_bin)) / MS
    usual_rate = max(1.0, float(np.median(case.arrivals)))
    smooth = np.convolve(case.arrivals, np.ones(3) / 3, mode="same")
    more = smooth > RISE_MIN * usual_rate
    # A queue outlives what filled it.
    crowded = by_second > 2 * np.median(by_second) + 1
    if not more.any() or not crowded.any():
        return None
    hit = crowded[case.request_bin]
    busy = float(np.mean(case.busy[crowded]))
    rise = float(smooth[more].mean() / usual_rate)
    follows = float(np.corrcoef(smooth, np.roll(by_second, -1))[0, 1]) if case.bins > 3 else 0.0
    repeats = case.repeated_share(more)
    score = 0.3 + 0.35 * min(1.0, rise - 1) + 0.35 * max(0.0, min(1.0, follows * 1.5))
    # With a device to spare it is not the load.
    score *= min(1.0, busy / BUSY_MIN) ** 2
    return case.finding(
        "A6",
        case.gain(np.where(hit, case.window.requests.e2e - case.spent(Spent.QUEUED), case.window.requests.e2e)),
        score * (1 - repeats),
        f"{rise:.1f} times as many requests as else arrive, more than {case.workers} busy workers can compute",
        Evidence(
            f"the devices are busy {busy:.0%} of the time while the queue grows",
            {"rise": rise, "busy": busy, "usual_per_s": usual_rate, "repeated": repeats},
            SQL,
        ),
        interval_us=case.seconds_us(more),
        exemplars=case.exemplars(queued),
    )
