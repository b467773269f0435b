"""The requests in the logs as rows: the recent, the slow, the failed."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from forensics.load import LogLine, Logs
from forensics.timeline import Clocks, gateway_stamps, timeline_of
from shared.events import Req
from shared.timeline import Class, Segment, Timeline, class_totals, segments

_UNIT_US = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_duration = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One request on one line. `started_us` is the wall clock; the segments sum to `e2e_ns`."""

    started_us: int
    id: str
    label: str
    model: str
    version: str
    status: int
    error_code: str
    e2e_ns: int
    segments: tuple[Segment, ...]
    batch_requests: int
    attempt: int

    @property
    def classes(self) -> Mapping[Class, int]:
        """Nanoseconds of each class."""
        return class_totals(self.segments)


def parse_since(text: str, *, now_us: int) -> int:
    """A duration back from now ("30s", "10m", "2h", "1d") or an ISO time (UTC unless it says otherwise), in us.

    Raises ValueError.
    """
    if m := _duration.fullmatch(text.strip()):
        return now_us - round(float(m[1]) * _UNIT_US[m[2]])
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            f"{text!r} is neither a duration such as 30s, 10m or 2h, nor an ISO time such as 2026-11-30T09:00:00Z"
        ) from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000_000)


def status_matches(wanted: str, status: int) -> bool:
    """True when `status` is `wanted`: a number (500), a hundred (5xx), `ok` (below 400) or `error`.

    Raises ValueError when `wanted` is none of these.
    """
    if wanted == "ok":
        return status < 400
    if wanted == "error":
        return status >= 400
    if re.fullmatch(r"[1-5]xx", wanted):
        return status // 100 == int(wanted[0])
    if re.fullmatch(r"\d{3}", wanted):
        return status == int(wanted)
    raise ValueError(f"{wanted!r} is no status: use a number such as 500, a hundred such as 5xx, or ok, or error")


def rows(logs: Logs) -> list[RequestRow]:
    """Every request in the logs, as they ended."""
    clocks = Clocks(logs)
    return [_row(line, clocks) for line in logs.of(Req)]


def recent(
    logs: Logs,
    *,
    now_us: int,
    slowest: int | None = None,
    since: str | int | None = None,
    model: str | None = None,
    status: str | None = None,
    limit: int | None = None,
) -> list[RequestRow]:
    """The requests that fit, newest first; with `slowest`, so many of them, the slowest first.

    `since` is when they began at the earliest: wall clock in us, or a text for `parse_since`. Raises ValueError.
    """
    if status is not None:
        status_matches(status, 0)  # a mistake is told even when there is no request
    since_us = parse_since(since, now_us=now_us) if isinstance(since, str) else since or 0
    found = [
        line
        for line in logs.of(Req)
        if _started_us(line) >= since_us
        and (model is None or model in (line.record.model, f"{line.record.model}/{line.record.version}"))
        and (status is None or status_matches(status, line.record.status))
    ]
    if slowest is not None:
        found.sort(key=lambda line: -Timeline(gateway_stamps(line.record)).e2e_ns)
        found = found[:slowest]
    else:
        found.sort(key=lambda line: -_started_us(line))
    # Only what is shown is worth splitting into segments: a folder may hold a million requests.
    clocks = Clocks(logs)
    return [_row(line, clocks) for line in found[:limit]]


def to_json(row: RequestRow) -> dict[str, Any]:
    """The row as a value ready for JSON; times in ns."""
    return {
        "id": row.id,
        "label": row.label,
        "started_us": row.started_us,
        "model": row.model,
        "version": row.version,
        "status": row.status,
        "error_code": row.error_code,
        "e2e_ns": row.e2e_ns,
        "classes": {kind.value: ns for kind, ns in row.classes.items()},
        "segments": {s.name: s.ns for s in row.segments},
        "batch_requests": row.batch_requests,
        "attempt": row.attempt,
    }


def percentile(values: Sequence[int], share: float) -> int:
    """The smallest value that at least `share` of the values do not exceed (nearest rank); 0 of nothing."""
    ordered = sorted(values)
    rank = -int(-share * len(ordered) // 1)  # rounded up
    return ordered[max(0, rank - 1)] if ordered else 0


def _started_us(line: LogLine[Req]) -> int:
    return line.envelope.wall_us - (line.envelope.mono - line.record.g0) // 1_000


def _row(line: LogLine[Req], clocks: Clocks) -> RequestRow:
    r = line.record
    timeline = timeline_of(r, clocks.offset(line))
    return RequestRow(
        started_us=_started_us(line),
        id=r.id,
        label=r.label,
        model=r.model,
        version=r.version,
        status=r.status,
        error_code=r.error_code,
        e2e_ns=timeline.e2e_ns,
        segments=tuple(segments(timeline)),
        batch_requests=r.batch_requests,
        attempt=r.attempt,
    )
