"""A2: short requests are padded to long batch-mates."""

import numpy as np

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import Case, Evidence, Finding
from forensics.diagnose.service import Part

SQL = """SELECT worker, avg(padding_ratio) AS padding, quantile_cont(padding_ratio, 0.9) AS padding_p90, count(*) AS
batches
FROM batches WHERE tokens_padded > 0 GROUP BY ALL"""


def detect(case: Case) -> Finding | None:
    """Passes that compute padding, and requests that wait for it."""
    spent = case.spent(Spent.PADDING)
    passes, batches = case.attribution.passes, case.window.batches
    if not spent.any():
        return None
    computed, useful = passes.computed, passes.useful
    waste = float(1 - useful.sum() / max(1.0, computed.sum()))
    unpadded = np.zeros(len(batches))
    models = batches.names["model"]
    for code, model in enumerate(models.names):
        law, of_model = passes.laws.get(model), models.codes == code
        if law is not None:
            unpadded[of_model] = law.predict(
                useful[of_model], batches.squares[of_model], batches.numbers["rows"][of_model].astype(np.float64)
            )
    less = np.where(unpadded > 0, np.clip(passes.predicted - unpadded, 0, passes.parts[Part.NORMAL]), 0)
    share = case.share(Spent.PADDING)
    return case.finding(
        "A2",
        case.gain(case.without(passes_ns=less)),
        0.3 + 0.4 * waste + 0.3 * min(1.0, max(0.0, share * 2)),
        f"{waste:.0%} of what is computed is padding",
        Evidence(
            f"padding is {case.excess_ms(Spent.PADDING):.1f} ms of what the tail takes more than the middle",
            {"padding": waste, "tail_ms": case.excess_ms(Spent.PADDING)},
            SQL,
        ),
        interval_us=case.when(spent > 0),
        exemplars=case.exemplars(spent),
    )
