"""C3: the first passes of a new process are slow."""

from forensics.diagnose.case import Case, Finding
from forensics.diagnose.cold import cold_finding
from forensics.diagnose.service import COLD_PASSES


def detect(case: Case) -> Finding | None:
    """Slow passes among the first of a process."""
    first = case.window.batches.numbers["nth"] <= COLD_PASSES
    return cold_finding(case, "C3", first, "the first passes of a process")
