"""C6: the worker looks for work too seldom."""

import numpy as np

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import MS, Case, Evidence, Finding
from forensics.diagnose.replay import idle_before
from forensics.diagnose.window import Bools

WAIT_MIN_MS = 2.0
SQL = """SELECT worker, count(*) AS requests, quantile_cont(stream_wait_ns + deliver_ns, 0.5) / 1e6 AS p50_ms,
quantile_cont(stream_wait_ns + deliver_ns, 0.99) / 1e6 AS p99_ms FROM requests WHERE answered GROUP BY ALL"""


def detect(case: Case) -> Finding | None:
    """Time in the stream in which the worker's device was free and the worker had not asked."""
    spent = case.spent(Spent.FETCH)
    waited = spent[spent > WAIT_MIN_MS * MS]
    if len(waited) < 10:
        return None
    p90_ms = float(np.quantile(waited, 0.9)) / MS
    gain = case.gain_of(gaps_ns=idle_before(case.window, case.attribution, [Spent.FETCH]))
    return case.finding(
        "C6",
        case.larger(gain, case.gain_of(Spent.FETCH)),
        0.5 + 0.5 * min(1.0, case.share(Spent.FETCH)),
        f"requests lie in the stream for up to {p90_ms:.0f} ms while the worker is free",
        Evidence(
            f"{len(waited)} requests waited for a free worker that had not asked",
            {"p90_wait_ms": p90_ms, "tail_ms": case.excess_ms(Spent.FETCH)},
            SQL,
        ),
        interval_us=case.when(spent > max(WAIT_MIN_MS, p90_ms / 2) * MS),
        culprits={"worker": _waited_for(case, spent > WAIT_MIN_MS * MS)},
        exemplars=case.exemplars(spent),
    )


def _waited_for(case: Case, marked: Bools) -> list[str]:
    """The workers for which these requests waited, whom most waited for first."""
    names = case.window.requests.names["worker"]
    count = np.bincount(names.codes[marked], minlength=len(names.names))
    return [names.names[i] for i in np.argsort(-count, kind="stable") if count[i]]
