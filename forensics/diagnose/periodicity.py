"""Do the slow requests come back?"""

from dataclasses import dataclass

from forensics.diagnose.case import Case


@dataclass(frozen=True, slots=True)
class Period:
    """They come back every `seconds`, by the `clock` "time", "requests" or "bytes"; `cycles` of them were seen."""

    clock: str
    seconds: float
    cycles: int


def period_of(case: Case) -> Period | None:
    """How the slow requests come back, if they do."""
    return None
