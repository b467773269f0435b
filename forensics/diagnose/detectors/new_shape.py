"""C4: the first pass of each new shape is slow."""

from forensics.diagnose.case import Case, Finding
from forensics.diagnose.cold import cold_finding
from forensics.diagnose.service import COLD_PASSES


def detect(case: Case) -> Finding | None:
    """Slow passes of shapes that their process had not seen before, after it was warm."""
    batches = case.window.batches
    return cold_finding(
        case, "C4", ~batches.shape_seen & (batches.numbers["nth"] > COLD_PASSES), "passes of new shapes"
    )
