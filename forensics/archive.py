"""Reading what only DuckDB can read, line by line: logs compressed with zstd, and archives in Parquet."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from forensics.files import archived_tag, stem_of
from forensics.load import TAGS, LogLine, Tally
from forensics.schema import ENVELOPE, RECORDS, UNREAD, Column
from shared.events import Clk, Envelope, Event, PeerOffset

ROWS_AT_ONCE = 2_000
LINE_BYTES_MAX = 16 << 20


def connect(database: str = ":memory:", *, memory_max: str = "200MB", threads: int = 1) -> duckdb.DuckDBPyConnection:
    """A connection that fetches no extensions from the network and stays within its memory."""
    connection = duckdb.connect(database)
    connection.execute("SET autoinstall_known_extensions = false; SET autoload_known_extensions = false")
    connection.execute(f"SET memory_limit = '{memory_max}'; SET threads = {threads}")
    return connection


def quoted(text: str | Path) -> str:
    """A text as an SQL literal."""
    return "'" + str(text).replace("'", "''") + "'"


def exactly(path: Path) -> str:
    """A path as a literal for DuckDB's readers, which would take `*`, `?` and `[` in it for a pattern."""
    return quoted("".join(f"[{char}]" if char in "*?[" else char for char in str(path)))


def zstd_lines(path: Path) -> Iterator[bytes]:
    """The lines of a compressed log, each with its end, but the last one: a cut file ends within a line.

    Raises FileNotFoundError.
    """
    if not path.exists():
        raise FileNotFoundError(path)
    return _zstd_lines(path)


def _zstd_lines(path: Path) -> Iterator[bytes]:
    # A table of one column, by a separator that JSON text cannot hold; Latin-1 keeps every byte as it is.
    source = (
        f"read_csv({exactly(path)}, columns = {{'line': 'VARCHAR'}}, auto_detect = false, header = false, "
        "delim = '\\x1f', quote = '', escape = '', new_line = '\\n', encoding = 'latin-1', ignore_errors = true, "
        f"compression = 'zstd', max_line_size = {LINE_BYTES_MAX}, buffer_size = {2 * LINE_BYTES_MAX})"
    )
    with connect() as connection:
        result = connection.execute(f"SELECT line FROM {source}")
        before: bytes | None = None
        while rows := result.fetchmany(ROWS_AT_ONCE):
            for (line,) in rows:
                if before is not None:
                    yield before + b"\n"
                before = (line or "").encode("latin-1")
        if before is not None:
            yield before


class Archives:
    """Archives to be read as logs, within bounds of the wall clock."""

    def __init__(self, files: Sequence[Path], since_us: int, until_us: int) -> None:
        self._files = files
        self._where = f"wall_us BETWEEN {since_us} AND {until_us}"
        self._held: dict[tuple[str, int, str, str], list[tuple[int, int]]] | None = None

    def read(
        self, wanted: Collection[str], needle: str, tally: Tally, logs: Sequence[Path], *, whole: bool
    ) -> Iterator[LogLine[Event]]:
        """The records of these types whose line has `needle` in it, in the order of time for each type.

        Everything is counted in `tally`, also the gaps in the numbers when the `whole` is read; `logs` are read
        besides.
        """
        for file in self._files:
            tally.files += 1
            lines, torn, bad = _counts(file, logs)
            tally.lines, tally.torn, tally.bad = tally.lines + lines, tally.torn + torn, tally.bad + bad
        if whole:
            for (_, pid, proc, inst), runs in self._runs().items():
                seen = sum(last - first + 1 for first, last in runs)
                tally.held(f"{proc}-{inst}", pid, runs[0][0], runs[-1][1], seen)
        for file in self._files:
            if (tag := archived_tag(file)) in wanted and tag in RECORDS:
                for envelope, record in _records(file, tag, self._where, needle):
                    yield LogLine(envelope, record)

    def has(self, e: Envelope) -> bool:
        """True when an archive has this line, so that a log's copy of it must not count."""
        runs = self._runs().get((e.clock, e.pid, e.proc, e.inst))
        if not runs:
            return False
        at = bisect_right(runs, e.seq, key=lambda run: run[0]) - 1
        return at >= 0 and e.seq <= runs[at][1]

    def _runs(self) -> dict[tuple[str, int, str, str], list[tuple[int, int]]]:
        """The numbers of the lines that are here, as runs from first to last, by process."""
        if self._held is not None:
            return self._held
        self._held = {}
        files = [file for file in self._files if archived_tag(file) in RECORDS]
        if not files:
            return self._held
        numbered = (
            "SELECT clock, pid, proc, inst, seq, "
            "seq - row_number() OVER (PARTITION BY clock, pid, proc, inst ORDER BY seq) AS run "
            f"FROM read_parquet([{', '.join(map(exactly, files))}], union_by_name = true) WHERE {self._where}"
        )
        with connect(memory_max="400MB") as connection:
            rows = connection.execute(
                f"SELECT clock, pid, proc, inst, min(seq), max(seq) FROM ({numbered}) "
                "GROUP BY clock, pid, proc, inst, run ORDER BY ALL"
            ).fetchall()
        for clock, pid, proc, inst, first, last in rows:
            self._held.setdefault((clock, pid, proc, inst), []).append((first, last))
        return self._held


def _counts(file: Path, logs: Sequence[Path]) -> tuple[int, int, int]:
    """Of an archive: its lines, and how many of them are torn, and bad; what is in `logs`, too, these tell of."""
    with connect() as connection:
        if archived_tag(file) == UNREAD:
            query = "SELECT count(*), count(*) FILTER (kind = 'torn'), count(*) FILTER (kind = 'bad')"
            query += f" FROM read_parquet({exactly(file)}) WHERE NOT list_contains($logs, file)"
            row = connection.execute(query, {"logs": [stem_of(log) for log in logs]}).fetchone()
        else:
            row = connection.execute(f"SELECT count(*), 0, 0 FROM read_parquet({exactly(file)})").fetchone()
        assert row is not None
        return row[0], row[1], row[2]


def _records(file: Path, tag: str, where: str, needle: str) -> Iterator[tuple[Envelope, Event]]:
    columns = RECORDS[tag]
    names = ", ".join(column.filled for column in (*ENVELOPE, *columns))
    if needle:
        texts = ", ".join(f"{column.quoted}::VARCHAR" for column in (*ENVELOPE, *columns))
        where += f" AND contains(concat_ws(chr(10), {texts}), $needle)"
    with connect() as connection:
        result = connection.execute(
            f"SELECT {names} FROM ({typed(columns)} UNION ALL BY NAME SELECT * FROM read_parquet({exactly(file)})) "
            f"WHERE {where}",
            {"needle": needle} if needle else None,
        )
        make = _maker(TAGS[tag], columns)
        while rows := result.fetchmany(ROWS_AT_ONCE):
            for row in rows:
                yield Envelope(*row[: len(ENVELOPE)]), make(row[len(ENVELOPE) :])


def typed(columns: Sequence[Column]) -> str:
    """An empty SELECT with an envelope's and a record's columns: united with an archive, it gives what that lacks."""
    return f"SELECT {', '.join(f'NULL::{c.type} AS {c.quoted}' for c in (*ENVELOPE, *columns))} WHERE false"


def _maker(kind: type[Event], columns: Sequence[Column]) -> Callable[[Sequence[Any]], Event]:
    """A function from a row to a record."""
    json = [i for i, column in enumerate(columns) if column.type == "JSON"]

    def make(row: Sequence[Any]) -> Event:
        values = list(row)
        for i in json:
            values[i] = msgspec.json.decode(values[i])
        if kind is Clk:
            values[-1] = [PeerOffset(**peer) for peer in values[-1]]
        return kind(*values)

    return make
