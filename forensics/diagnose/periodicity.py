"""How often: do the slow requests come back, and by which clock?"""

from forensics.diagnose.case import Case
from forensics.statistics.periods import Period, find_period

__all__ = ["Period", "period_of"]


def period_of(case: Case) -> Period | None:
    """The period of the slow requests by time, by the count of requests, or by bytes; None when there is none."""
    r = case.window.requests
    sizes = r.numbers["bytes_in"]
    return find_period(r.at_us * 1000, r.e2e, sizes if sizes.any() else None)


def told(period: Period) -> str:
    """A period in words."""
    length = {
        "time": f"{period.period / 1e9:.2f} s",
        "requests": f"{period.period:,.0f} requests",
        "bytes": f"{period.period:,.0f} bytes",
    }[period.clock.value]
    return (
        f"slow requests come back every {length} ({period.cycles:.0f} times), {period.amplitude_ns / 1e6:.1f} ms "
        f"slower than the rest, for {period.duty:.0%} of the time"
    )
