"""Reading the logs: lines to typed records, with an account of every line that could not be read.

A log directory holds `<proc>-<inst>.jsonl` and what was rotated away, `<proc>-<inst>.000001.jsonl`, plain or zstd, and
archives (`forensics/files.py`). The writers may be alive, or may have been killed in the middle of a line; neither is
an error. What is lost is counted: a torn line, a line that is no record, a gap in the sequence numbers of a process.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar, cast, get_args

import msgspec

from forensics.files import ZSTD, archived_tag, log_files
from shared.events import Envelope, Event, Req, Wreq

R = TypeVar("R", bound=Event)
"""A type of record."""

TAGS: dict[str, type[Event]] = {str(kind.__struct_config__.tag): kind for kind in get_args(Event)}
"""Every type of record by its tag."""

ALL: frozenset[type[Event]] = frozenset(TAGS.values())

PIECE_CHARS_MIN = 6
"""A piece of an id must be at least this long to stand for it."""

_envelope_decoder = msgspec.json.Decoder(Envelope)
_decoders = {tag: msgspec.json.Decoder(kind) for tag, kind in TAGS.items()}
_ENVELOPE_WITHIN_BYTES = 512
"""The envelope comes first in a line, so this much of it has the tag and the time."""
_FAR_US = 1 << 62


class LogLine(NamedTuple, Generic[R]):
    """One line of a log: who wrote it, and what."""

    envelope: Envelope
    record: R

    @property
    def writer(self) -> str:
        """The process that wrote the line, as its file is named."""
        return f"{self.envelope.proc}-{self.envelope.inst}"


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What reading has met. `lost` has the missing lines per process, by the gaps of their sequence numbers."""

    files: int = 0
    lines: int = 0
    torn: int = 0
    bad: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)


class Tally:
    """Counts while lines are read; `report` says what was met so far."""

    def __init__(self) -> None:
        self.files = self.lines = self.torn = self.bad = 0
        self._runs: dict[str, list[_Run]] = {}

    def saw(self, envelope: Envelope) -> None:
        """Note a line that could be read, to find the gaps between them."""
        runs = self._runs.setdefault(f"{envelope.proc}-{envelope.inst}", [])
        if not runs or envelope.t == "hello" or runs[-1].pid != envelope.pid:
            runs.append(_Run(envelope.pid, envelope.seq, envelope.seq))
        run = runs[-1]
        run.first, run.last = min(run.first, envelope.seq), max(run.last, envelope.seq)
        run.seen += 1

    def held(self, writer: str, pid: int, first: int, last: int, seen: int) -> None:
        """Note what archives hold of a process: `seen` lines, from number `first` to `last`."""
        self._runs.setdefault(writer, []).append(_Run(pid, first, last, seen))

    def report(self) -> LoadReport:
        """The counts as a value."""
        lost = {writer: sum(max(0, r.last - r.first + 1 - r.seen) for r in runs) for writer, runs in self._runs.items()}
        return LoadReport(self.files, self.lines, self.torn, self.bad, {w: n for w, n in lost.items() if n})


@dataclass(slots=True)
class _Run:
    """One life of a process: from its hello on, sequence numbers count up by one."""

    pid: int
    first: int
    last: int
    seen: int = 0


def read_logs(
    paths: Iterable[Path],
    types: Collection[type[Event]] = ALL,
    *,
    tally: Tally | None = None,
    needle: str = "",
    since_us: int = 0,
    until_us: int = 0,
) -> Iterator[LogLine[Event]]:
    """Every line of the wanted types, once: those of archives in the order of time, then file by file as written.

    `needle` keeps the lines that contain this text anywhere. `since_us` and `until_us` (0 = no limit) bound the wall
    clock at writing. What these and `types` leave out is passed over by its bytes, undecoded, which is much faster;
    gaps in the sequence are counted only when all types are read, and within the bounds of time.
    """
    tally = tally or Tally()
    wanted = {str(kind.__struct_config__.tag) for kind in types}
    sought = msgspec.json.encode(needle)[1:-1]
    unwanted = TAGS.keys() - wanted
    whole = not sought and not unwanted
    bounded = since_us > 0 or until_us > 0
    files = log_files(paths)
    logs = [file for file in files if not archived_tag(file)]
    is_held: Callable[[Envelope], bool] | None = None
    if len(logs) < len(files):
        from forensics import archive  # DuckDB takes its time to load

        found = archive.Archives([file for file in files if archived_tag(file)], since_us, until_us or _FAR_US)
        yield from found.read(wanted, needle, tally, logs, whole=whole)
        is_held = found.has
    for path in logs:
        with contextlib.ExitStack() as stack:
            try:
                lines = lines_of(path, stack)
            except FileNotFoundError:
                continue  # rotated away between listing and opening
            tally.files += 1
            for line in lines:
                tally.lines += 1
                if sought not in line or (unwanted and _tag_of(line) in unwanted):
                    continue
                if bounded and not since_us <= _wall_us_of(line, since_us) <= (until_us or _FAR_US):
                    continue
                read = read_line(line, wanted, tally)
                if read is None:
                    continue
                envelope, record = read
                if is_held is not None and is_held(envelope):
                    continue
                if bounded and not since_us <= envelope.wall_us <= (until_us or _FAR_US):
                    continue
                if whole:
                    tally.saw(envelope)
                if record is not None:
                    yield LogLine(envelope, record)


def lines_of(path: Path, stack: contextlib.ExitStack) -> Iterable[bytes]:
    """The lines of a file while `stack` is open. Raises FileNotFoundError."""
    if not path.name.endswith(ZSTD):
        return stack.enter_context(path.open("rb"))
    from forensics import archive

    return archive.zstd_lines(path)


def _tag_of(line: bytes) -> str:
    """A line's tag by its bytes alone. In JSON text a quote is escaped, so no value can look like this."""
    start = line.find(b'"t":"', 0, _ENVELOPE_WITHIN_BYTES)
    if start < 0:
        return ""
    return line[start + 5 : line.find(b'"', start + 5)].decode("utf-8", "replace")


def _wall_us_of(line: bytes, default_us: int) -> int:
    """When a line was written, by its bytes alone; `default_us` when that cannot be seen."""
    start = line.find(b'"wall_us":', 0, _ENVELOPE_WITHIN_BYTES)
    digits = line[start + 10 : start + 26]
    return int(digits) if start >= 0 and digits.isdigit() else default_us


def read_line(line: bytes, wanted: Collection[str], tally: Tally) -> tuple[Envelope, Event | None] | None:
    """A line as a record (None when its tag is not `wanted`), or None and a count in `tally` when it is none."""
    try:
        return _decode(line, wanted)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    if not line.endswith(b"\n"):
        tally.torn += 1
        return None
    # A process that was killed in mid-line and started again has put its first whole line behind the torn one.
    start = line.rfind(b'{"v":')
    if start > 0:
        try:
            rescued = _decode(line[start:], wanted)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        else:
            tally.torn += 1
            return rescued
    tally.bad += 1
    return None


def _decode(line: bytes, wanted: Collection[str]) -> tuple[Envelope, Event | None]:
    envelope = _envelope_decoder.decode(line)
    if envelope.t in wanted:
        return envelope, _decoders[envelope.t].decode(line)
    if envelope.t not in TAGS:
        raise msgspec.ValidationError(f"{envelope.t!r} is no record of this version")
    return envelope, None


class AmbiguousId(Exception):
    """A piece of an id that fits several requests; `ids` has them."""

    def __init__(self, ids: list[str]) -> None:
        super().__init__(f"{len(ids)} requests fit")
        self.ids = ids


class Logs:
    """The lines of some logs in memory, by type."""

    def __init__(self, lines: Iterable[LogLine[Event]], report: LoadReport | None = None) -> None:
        self._lines: dict[type, list[LogLine[Event]]] = {kind: [] for kind in ALL}
        for line in lines:
            self._lines[type(line.record)].append(line)
        self.report = report or LoadReport()

    @classmethod
    def load(
        cls,
        paths: Iterable[Path],
        types: Collection[type[Event]] = ALL,
        *,
        needle: str = "",
        since_us: int = 0,
        until_us: int = 0,
    ) -> "Logs":
        """Read files or folders; the limits are those of `read_logs`."""
        tally = Tally()
        logs = cls(read_logs(paths, types, tally=tally, needle=needle, since_us=since_us, until_us=until_us))
        logs.report = tally.report()
        return logs

    def of(self, kind: type[R]) -> list[LogLine[R]]:
        """Every line of one type."""
        return cast("list[LogLine[R]]", self._lines[kind])

    def written_by(self, proc: str, inst: str) -> list[LogLine[Event]]:
        """Every line of one process (`gateway` or `worker`, and its instance name), by its monotonic clock."""
        found = [
            line
            for lines in self._lines.values()
            for line in lines
            if line.envelope.inst == inst and line.envelope.proc == proc
        ]
        return sorted(found, key=lambda line: line.envelope.mono)

    def find(self, query: str) -> list[str]:
        """The ids of the requests that `query` names, oldest first.

        It may be an id, a client's label or body id, or a trace id (all requests that bear it); or else the
        beginning or end of one id. A part of a request names the whole. Raises AmbiguousId when a piece of an id
        fits several requests.
        """
        if not query:
            return []
        reqs = self.of(Req)
        wreqs = self.of(Wreq)
        whole = {(r.trace_id, r.span_id): r.id for _, r in reqs if r.parts}
        names: list[tuple[str, str, tuple[str, ...]]] = [
            (r.id, r.id, (r.label, r.client_id, r.trace_id)) for _, r in reqs
        ]
        names += [(whole.get((w.trace_id, w.parent_span_id), w.id), w.id, (w.trace_id,)) for _, w in wreqs]
        seen = dict.fromkeys(of for of, own, others in names if query == own or query in others)
        if not seen and len(query) >= PIECE_CHARS_MIN:
            seen = dict.fromkeys(of for of, own, _ in names if own.startswith(query) or own.endswith(query))
            if len(seen) > 1:
                raise AmbiguousId(list(seen))
        ended = {w.id: envelope.wall_us for envelope, w in wreqs} | {r.id: envelope.wall_us for envelope, r in reqs}
        return sorted(seen, key=lambda i: ended[i])
