"""C4: the first pass of each new shape is slow."""

import numpy as np

from forensics.diagnose.case import Case, Evidence, Finding
from forensics.diagnose.service import Part
from forensics.diagnose.slowness import PARTS
from forensics.diagnose.window import Bools, Ints

FAR = 64
KEPT = (3, 6, 10, 16, 24, 40, 64)
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
    distance = _distance(case)

    def shares(kept: int) -> tuple[float, float]:
        new = distance >= kept
        of_new = float((late & new).sum() / max(1, (new & warm).sum()))
        return of_new, float((late & ~new).sum() / max(1, (~new & warm).sum()))

    # How many shapes are remembered, nobody tells; as many as tell slow from quick best.
    kept = max(KEPT, key=lambda k: shares(k)[0] - shares(k)[1])
    new, (of_new, of_known) = distance >= kept, shares(kept)
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
    """For each pass: how many other shapes its worker ran since it last ran this one; `FAR` for more, and the first."""
    batches = case.window.batches
    shapes = zip(batches.numbers["rows"].tolist(), batches.longest.tolist(), strict=True)
    last: dict[int, list[tuple[int, float]]] = {}
    distance = np.full(len(batches), FAR, dtype=np.int64)
    for i, (worker, shape) in enumerate(zip(batches.names["worker"].codes.tolist(), shapes, strict=True)):
        known = last.setdefault(worker, [])
        if shape in known:
            place = known.index(shape)
            distance[i] = len(known) - 1 - place
            del known[place]
        else:
            del known[: 1 + len(known) - FAR]
        known.append(shape)
    return distance
