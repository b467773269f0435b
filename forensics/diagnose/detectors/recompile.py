"""C1: torch.compile compiles for new shapes while requests wait."""

from forensics.diagnose.attribution import Spent
from forensics.diagnose.case import MS, Case, Evidence, Finding
from forensics.diagnose.service import Part

SQL = """SELECT worker, batch_id, sealed_at, compiles, device_thread_ns / 1e6 AS ms, cost FROM batches
WHERE compiles > 0 ORDER BY ms DESC"""


def detect(case: Case) -> Finding | None:
    """Passes in which graphs were compiled."""
    parts = case.attribution.passes.parts[Part.COMPILE]
    if not parts.any():
        return None
    spent = case.spent(Spent.COMPILE)
    compiled = int((parts > 0).sum())
    return case.finding(
        "C1",
        case.gain_of(parts=(Part.COMPILE,)),
        0.55 + 0.45 * min(1.0, case.share(Spent.COMPILE)),
        f"{compiled} passes compile a graph for a new shape, {float(parts[parts > 0].mean()) / MS:.0f} ms each",
        Evidence(
            "torch counted new graphs in these passes",
            {"passes": compiled, "tail_ms": case.excess_ms(Spent.COMPILE)},
            SQL,
        ),
        interval_us=case.when(spent > 0),
        exemplars=case.exemplars(spent),
    )
