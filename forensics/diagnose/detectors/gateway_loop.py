"""B3: something blocks the event loop of a gateway."""

import numpy as np

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import MS, Case, Evidence, Finding
from forensics.diagnose.detectors.payload import big_bodies
from forensics.diagnose.machine import short_of_cores

LAG_MIN_MS = 10.0
SQL = """SELECT inst AS gateway, started_at, duration_ns / 1e6 AS ms FROM events
WHERE kind = 'loop_lag' AND proc = 'gateway' ORDER BY ms DESC"""


def detect(case: Case) -> Finding | None:
    """Late beats of a gateway's loop that no collection explains, while the machine had cores to spare."""
    lags = [e for e in case.events("loop_lag", "gateway") if e.ns >= LAG_MIN_MS * MS]
    spent = case.spent(Spent.GATEWAY_LOOP)
    if not lags or not spent.any():
        return None
    longest_ms = max(lag.ns for lag in lags) / MS
    bodies = big_bodies(case)
    # A body that is parsed blocks the loop too, but then the body is the cause.
    at = case.window.requests.at_us[bodies]
    beside = [lag for lag in lags if len(at) and np.abs(at - lag.at_us).min() < 1_000_000]
    crowded = short_of_cores(case)
    score = 0.5 + 0.5 * case.share(Spent.GATEWAY_LOOP)
    evidence = [
        Evidence(
            f"the loop's beat was up to {longest_ms:.0f} ms late, {len(lags)} times",
            {"lags": len(lags), "longest_ms": longest_ms, "tail_ms": case.excess_ms(Spent.GATEWAY_LOOP)},
            SQL,
        )
    ]
    if len(beside) > len(lags) / 2:
        score *= 0.4
        evidence.append(Evidence("most stalls are beside a large body", {"stalls": len(beside)}, against=True))
    if crowded > 0.5:
        score *= 0.5
        evidence.append(Evidence("all cores were in use meanwhile", {"share_of_time": crowded}, against=True))
    return case.finding(
        "B3",
        case.gain_of(Spent.GATEWAY_LOOP),
        score,
        f"something blocks the gateway's event loop, for up to {longest_ms:.0f} ms",
        *evidence,
        interval_us=case.when(spent > LAG_MIN_MS * MS),
        culprits={"gateway": case.most(lags)},
        exemplars=case.exemplars(spent),
    )
