"""Recorded traffic again: the gateways' logs say which model was asked, when, for how many rows, in how many bytes.

They hold no payloads, so inputs are made up of about the recorded size. Embeddings and jobs are sent as infer requests.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.errors import CannotMeasure
from bench.oip import infer_body
from bench.workload import Maker, Request, Sender
from forensics.load import LogLine, read_logs
from shared.events import Req
from shared.keys import NORMAL

_SIZE_BITS = 6
"""Sizes are kept to so many binary digits, 1.6 %: each size is a request made ready before the run begins."""


class Size(NamedTuple):
    """What distinguishes one request from another, as far as the log knows."""

    rows: int
    body_bytes: int
    priority: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request of the log, `at_ns` after the first."""

    at_ns: int
    model: str
    size: Size


def read(paths: Iterable[Path], *, model: str = "", since_us: int = 0) -> list[Recorded]:
    """The requests for `model` (empty: for any) in the logs, in the order they came. Raises CannotMeasure."""
    paths = list(paths)
    for path in paths:
        if not path.exists():
            raise CannotMeasure(f"there are no logs at {path}; name a folder such as .tailrace/logs, or files in it")
    lines = [
        LogLine(line.envelope, line.record)
        for line in read_logs(paths, (Req,), since_us=since_us)
        if isinstance(line.record, Req)
        and line.record.rows > 0
        and line.record.model
        and model in ("", line.record.model)
    ]
    if not lines:
        of = f" for model '{model}'" if model else ""
        raise CannotMeasure(f"the logs in {', '.join(map(str, paths))} have no requests{of}")
    # One machine since its start has one monotonic clock; several must be compared by their wall clocks.
    same = len({line.envelope.clock for line in lines}) == 1
    began = sorted(((_began_ns(line, same), line.record) for line in lines), key=lambda b: b[0])
    return [
        Recorded(at_ns - began[0][0], r.model, Size(r.rows, _rounded(r.bytes_in), r.priority)) for at_ns, r in began
    ]


def _began_ns(line: LogLine[Req], same_clock: bool) -> int:
    if same_clock:
        return line.record.g0
    return line.envelope.wall_us * 1000 - (line.envelope.mono - line.record.g0)


def _rounded(size_bytes: int) -> int:
    shift = max(0, size_bytes.bit_length() - _SIZE_BITS)
    return size_bytes >> shift << shift


def planned(
    recorded: Sequence[Recorded], requests: dict[tuple[str, Size], Request], *, speed: float, duration_ns: int
) -> Iterator[tuple[int, Request]]:
    """(when in ns from the beginning, request), `speed` times as fast as they came, below `duration_ns` (0: all)."""
    for r in recorded:
        at_ns = round(r.at_ns / speed)
        if duration_ns and at_ns >= duration_ns:
            return
        yield at_ns, requests[r.model, r.size]


def request_of(size: Size, maker: Maker, sender: Sender) -> Request:
    """A request with so many rows whose body has about so many bytes, if the model lets it grow.

    A request for embeddings may have had more rows than the model takes at once; then it is as large as may be.
    """
    more = {} if size.priority == NORMAL else {"x_request_priority": str(size.priority)}
    rows_max = maker.model.rows_max
    rows = size.rows if rows_max is None else min(size.rows, max(1, rows_max))
    target_bytes = size.body_bytes * rows // size.rows

    def body_bytes(free: int, text_bytes: int) -> int:
        return len(infer_body(maker.tensors(rows, free=free, text_bytes=text_bytes), binary=sender.binary)[0])

    free, text_bytes = 0, -1
    if count := maker.text_count(rows):
        text_bytes = max(1, (target_bytes - body_bytes(0, 0)) // count)
    elif maker.has_free_sizes:
        least, more_bytes = body_bytes(1, -1), body_bytes(101, -1)
        free = max(1, 1 + 100 * (target_bytes - least) // max(1, more_bytes - least))
    return sender.of_tensors(maker.tensors(rows, free=free, text_bytes=text_bytes), rows, **more)
