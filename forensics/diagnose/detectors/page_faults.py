"""E3: memory is read back from disk."""

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import Case, Evidence, Finding
from forensics.diagnose.service import Part

SQL = (
    """SELECT worker, sealed_at, majflt, device_thread_ns / 1e6 AS ms FROM batches WHERE majflt > 0 ORDER BY ms DESC"""
)


def detect(case: Case) -> Finding | None:
    """Slow passes with major page faults."""
    parts = case.attribution.passes.parts[Part.PAGE_FAULTS]
    if not parts.any():
        return None
    spent = case.spent(Spent.PAGE_FAULTS)
    faults = int(case.window.batches.numbers["majflt"][parts > 0].sum())
    return case.finding(
        "E3",
        case.gain_of(parts=(Part.PAGE_FAULTS,)),
        0.5 + 0.5 * case.share(Spent.PAGE_FAULTS),
        f"{int((parts > 0).sum())} slow passes read {faults:,} pages back from disk",
        Evidence(
            "major page faults of the pass's own thread", {"faults": faults, "passes": int((parts > 0).sum())}, SQL
        ),
        interval_us=case.when(spent > 0),
        exemplars=case.exemplars(spent),
    )
