"""C2: torch.compile reached its limit and runs a model eagerly, without a word."""

import numpy as np

from forensics.diagnose.case import Case, Evidence, Finding
from forensics.diagnose.service import Part
from forensics.diagnose.slowness import PARTS

STEP_MIN = 1.2
SLOW_MIN = 0.08
SQL = """SELECT worker, sealed_at, compiles, device_thread_ns / predicted AS times_predicted FROM batches
WHERE predicted > 0 ORDER BY worker, sealed_at"""


def detect(case: Case) -> Finding | None:
    """Passes of a model that was compiled which are slow after its last graph, and were not before it."""
    batches, slow = case.window.batches, case.slowness
    compiled = np.flatnonzero(batches.numbers["compiles"] > 0)
    if not len(compiled) or not slow.beyond.any():
        return None
    last = int(batches.at_us[compiled].max())
    models = np.unique(batches.names["model"].codes[compiled])
    of_model = np.isin(batches.names["model"].codes, models) & (batches.numbers["compiles"] == 0)
    before, after = of_model & (batches.at_us < batches.at_us[compiled].min()), of_model & (batches.at_us > last)
    if not after.any():
        return None
    eager = after & (slow.beyond > 0)
    late = float(eager.sum() / after.sum())
    early = float((before & (slow.beyond > 0)).sum() / max(1, before.sum()))
    step = slow.ratio(eager)
    if step < STEP_MIN or late < SLOW_MIN or late < 2 * early:
        return None
    return case.finding(
        "C2",
        case.gain_of(parts=PARTS, passes=eager),
        0.6 + 0.4 * slow.share_of(Part.SLOW_COMPUTE),
        f"since the last graph was compiled {late:.0%} of the passes take {step:.2f} times as long: they run eagerly",
        Evidence(
            f"{late:.0%} of the passes are slow since then, {early:.0%} were before",
            {"step": step, "slow_after": late, "slow_before": early},
            SQL,
        ),
        interval_us=(last, int(batches.at_us[eager].max())),
        exemplars=case.exemplars(case.spent_slowly),
    )
