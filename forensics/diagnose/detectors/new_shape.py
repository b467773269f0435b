"""C4: the first pass of each new shape is slow."""

from collections import OrderedDict

import numpy as np

from forensics.diagnose.case import Case, Evidence, Finding
from forensics.diagnose.service import Part
from forensics.diagnose.slowness import PARTS
from forensics.diagnose.window import Bools, Ints

FAR = 6
"""A shape counts as new when its worker ran so many others since, or never ran it."""
SLOW_PARTS = (*PARTS, Part.COLD)
SQL = """SELECT worker, rows, list_max(costs) AS longest, count(*) AS passes, max(device_thread_ns) / 1e6 AS slowest_ms,
quantile_cont(device_thread_ns, 0.5) / 1e6 AS p50_ms FROM batches GROUP BY ALL ORDER BY slowest_ms DESC"""


def detect(case: Case) -> Finding | None:
    """Slow passes of shapes that their worker had not run for long, while shapes that it knows are quick."""
    batches, slow = case.window.batches, case.slowness
    parts = case.attribution.passes.parts
    beyond = sum((parts[part] for part in SLOW_PARTS), np.zeros(len(batches), dtype=np.int64))
    warm = (batches.numbers["nth"] > 3) & (batches.numbers["compiles"] == 0)
    late = (beyond > 0) & warm
    if late.sum() < 3:
        return None
    new = _distance(case) >= FAR
    of_new = float((late & new & warm).sum() / max(1, (new & warm).sum()))
    of_known = float((late & ~new).sum() / max(1, (~new & warm).sum()))
    share = float(beyond[late & new].sum() / max(1, beyond[late].sum()))
    if share < 0.5 or of_new < 3 * of_known or (new & warm).mean() > 0.6:
        return None
    marked: Bools = late & new
    return case.finding(
        "C4",
        case.gain_of(parts=SLOW_PARTS, passes=marked),
        0.4 + 0.4 * share + 0.2 * of_new,
        f"{int(marked.sum())} passes of shapes that their worker had not met for long take {slow.ratio(marked):.1f} "
        f"times as long",
        Evidence(
            f"{of_new:.0%} of the passes of such shapes are slow, {of_known:.0%} of the others",
            {"slow_of_new": of_new, "slow_of_known": of_known, "share": share},
            SQL,
        ),
        interval_us=(int(batches.at_us[marked].min()), int(batches.at_us[marked].max())),
        culprits={"worker": case.workers_of(marked)},
        exemplars=case.exemplars(case.spent_slowly),
    )


def _distance(case: Case) -> Ints:
    """For each pass: how many other shapes its worker has run since it ran this one; large for the first."""
    batches = case.window.batches
    rows, longest = batches.numbers["rows"].tolist(), batches.longest.tolist()
    workers = batches.names["worker"].codes.tolist()
    seen: dict[int, OrderedDict[tuple[int, float], None]] = {}
    distance = np.full(len(batches), 1 << 30, dtype=np.int64)
    for i, (worker, shape) in enumerate(zip(workers, zip(rows, longest, strict=True), strict=True)):
        known = seen.setdefault(worker, OrderedDict())
        if shape in known:
            for steps, other in enumerate(reversed(known)):
                if other == shape or steps >= FAR:
                    distance[i] = steps
                    break
            known.move_to_end(shape)
        known[shape] = None
    return distance
