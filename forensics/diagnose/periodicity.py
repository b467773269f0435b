"""How often: do the slow requests come back, and by which clock?"""

from dataclasses import dataclass

from forensics.diagnose.case import MS, Case
from forensics.statistics.periods import Clock, find_period


@dataclass(frozen=True, slots=True)
class Period:
    """Slow requests come back after `length` of the `clock`: ns of "time", "requests", or "bytes".

    `seconds` is how long that takes, for requests and bytes in the mean; `cycles` of it were seen. For the share `duty`
    of each cycle requests are `amplitude_ms` slower than in the rest.
    """

    clock: Clock
    length: float
    seconds: float
    cycles: float
    duty: float
    amplitude_ms: float


def period_of(case: Case) -> Period | None:
    """The period of the slow requests, by the clock that shows it most sharply; None when there is none."""
    r = case.window.requests
    sizes = r.numbers["bytes_in"]
    found = find_period(r.at_us * 1000, r.e2e, sizes if sizes.any() else None)
    if found is None:
        return None
    whole = {Clock.TIME: case.window.seconds * 1e9, Clock.REQUESTS: float(len(r)), Clock.BYTES: float(sizes.sum())}
    seconds = found.period / max(whole[found.clock], 1.0) * case.window.seconds
    return Period(found.clock, found.period, seconds, found.cycles, found.duty, found.amplitude_ns / MS)


def told(period: Period) -> str:
    """A period in words."""
    length = f"{period.seconds:.2f} s"
    if period.clock is not Clock.TIME:
        length = f"{period.length:,.0f} {period.clock.value}, which is every {length} here"
    return (
        f"slow requests come back every {length} ({period.cycles:.0f} times), {period.amplitude_ms:.1f} ms slower than "
        f"the rest, for {period.duty:.0%} of the time"
    )
