"""The server's own account of a response: the Server-Timing header (W3C Server Timing), in ns."""

import re
from typing import NamedTuple

PARTS = ("queue", "compute", "transfer", "overhead")
_TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_METRIC = re.compile(rf"({_TOKEN})((?:\s*;\s*{_TOKEN}(?:\s*=\s*(?:{_TOKEN}|{_QUOTED})?)?)*)")
_DURATION = re.compile(r"""(?:^|;)\s*dur\s*=\s*"?(-?\d+(?:\.\d+)?)""", re.IGNORECASE)
_OURS = re.compile(
    r"queue;dur=(-?[\d.]+), compute;dur=(-?[\d.]+), transfer;dur=(-?[\d.]+), overhead;dur=(-?[\d.]+), "
    r"total;dur=([\d.]+)"
)


class Ledger(NamedTuple):
    """Where the server says the time went, in ns; the four parts sum to `total`, up to a rounding of 1 us each."""

    queue: int
    compute: int
    transfer: int
    overhead: int
    total: int


def durations(value: str) -> dict[str, float]:
    """Every metric of a Server-Timing header that has a duration, in ms."""
    found: dict[str, float] = {}
    for name, parameters in _METRIC.findall(value):
        if duration := _DURATION.search(_without_descriptions(parameters)):
            found.setdefault(name, float(duration[1]))
    return found


def ledger_of(value: str | None) -> Ledger | None:
    """The ledger in a header; None when the server keeps none with our parts."""
    if value is None:
        return None
    if m := _OURS.fullmatch(value):  # a fifth of the time, on every request
        return Ledger._make(round(float(ms) * 1e6) for ms in m.groups())
    ms = durations(value)
    if not all(part in ms for part in PARTS):
        return None
    total_ms = ms.get("total", sum(ms[part] for part in PARTS))
    return Ledger._make(round(one * 1e6) for one in (*(ms[part] for part in PARTS), total_ms))


def _without_descriptions(parameters: str) -> str:
    """Quoted texts may say anything, also `dur=1`; only a quoted number can matter."""
    return re.sub(_QUOTED, lambda m: m[0] if re.fullmatch(r'"[\d.]+"', m[0]) else '""', parameters)
