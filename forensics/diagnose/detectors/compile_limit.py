"""C2: torch.compile reached its limit and runs a model eagerly, without a word."""

import numpy as np

from forensics.diagnose.case import Case, Evidence, Finding

STEP_MIN = 1.2
SQL = """SELECT worker, sealed_at, compiles, device_thread_ns / predicted AS times_predicted FROM batches
WHERE predicted > 0 ORDER BY worker, sealed_at"""


def detect(case: Case) -> Finding | None:
    """A step up of the passes of a model that was compiled, after its last graph, that stays."""
    batches, slow = case.window.batches, case.slowness
    compiled = np.flatnonzero(batches.numbers["compiles"] > 0)
    if not len(compiled) or not slow.passes.any():
        return None
    last = int(batches.at_us[compiled].max())
    models = np.unique(batches.names["model"].codes[compiled])
    of_model = np.isin(batches.names["model"].codes, models)
    before, after = of_model & (batches.at_us < last), of_model & (batches.at_us > last)
    step = slow.ratio(after) / max(slow.ratio(before), 0.5)
    late = float(np.mean(slow.passes[after])) if after.any() else 0.0
    if step < STEP_MIN or late < 0.5:
        return None
    return case.finding(
        "C2",
        slow.gain,
        0.6 + 0.4 * late,
        f"after the last graph was compiled the model takes {step:.2f} times as long, and stays so: it runs eagerly",
        Evidence("passes against the law, before and after", {"step": step, "slow_after": late}, SQL),
        interval_us=(last, int(batches.at_us[after].max())),
        exemplars=case.exemplars(case.spent_slowly),
    )
