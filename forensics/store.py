"""The log store: logs of any size as SQL tables, within a bounded memory.

Theory of operation. JSON lines, plain or zstd, are parsed by DuckDB in one pass into one wide table with a column for
every field of every record; what is not there is NULL and takes no room. The table lies in a temporary file that goes
with the store, so the memory is bounded whatever the logs' size. Archives (Parquet, made by `tailrace logs compact`)
are read where they lie, and of a line that is both in an archive and in a log, the log's copy is dropped. `raw.T` is
every record of type T from both, with all defaults filled in; the views for people stand on these (`views.py`).

Lines that are no record are taken out and looked at one by one, as `forensics/load.py` does: a torn line may have a
whole one behind it. What stays unread is kept, by file, in `raw.unread`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb

from forensics import archive
from forensics.archive import exactly, quoted
from forensics.files import archived_tag, log_files, stem_of
from forensics.lives import NAMES_COME_BACK, table_of_lives
from forensics.load import TAGS, LoadReport, Tally, lines_of, read_line
from forensics.offset_tables import make_offsets
from forensics.offsets import Offsets
from forensics.schema import ENVELOPE, IDENTITY, RECORDS, UNREAD, every_column, is_record
from forensics.views import VIEWS
from shared.vitals import usable_cores

MEMORY_MAX = "500MB"
"""DuckDB's own bound. Python, DuckDB's code and what it reads ahead come on top of it: about 100 MB."""
THREADS_MAX = 4
OBJECT_BYTES_MAX = 16 << 20
"""The longest line: a tick's event may list many thousand ids."""
TEXT_CHARS_MAX = 200
LISTING_TRIES = 3

Parameters = Sequence[Any] | Mapping[str, Any]


class LogError(Exception):
    """There are no logs to read; says what was expected, and what is there."""


class Store:
    """Logs as SQL tables and views; `open_store` makes it."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, files: Sequence[Path]) -> None:
        self.connection = connection
        self.files = files
        self.offsets = Offsets()
        """What is known of the clocks, and where they contradict what they should do."""

    def rows(self, sql: str, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        """The rows of a query, all of them at once. Raises duckdb.Error."""
        return self.connection.execute(sql, parameters or None).fetchall()

    def value(self, sql: str, parameters: Parameters = ()) -> Any:
        """The one value of a query."""
        return self.rows(sql, parameters)[0][0]

    def report(self) -> LoadReport:
        """What reading has met."""
        kinds = dict(self.rows("SELECT kind, count(*) FROM raw.unread GROUP BY kind"))
        torn, bad = kinds.get("torn", 0), kinds.get("bad", 0)
        lost = self.rows("SELECT proc || '-' || inst, sum(lost)::BIGINT FROM raw.lives WHERE lost > 0 GROUP BY ALL")
        lines = self.value("SELECT count(*) FROM raw.every_line") + torn + bad
        return LoadReport(len(self.files), lines, torn, bad, dict(lost))


@contextmanager
def open_store(paths: Iterable[Path], *, memory_max: str = MEMORY_MAX) -> Iterator[Store]:
    """Read logs (files, or folders of them) into tables. Everything is gone when the block ends.

    Raises LogError when there are none, or none of their lines is a record.
    """
    paths = list(paths)
    threads = min(THREADS_MAX, usable_cores())
    with (
        TemporaryDirectory(prefix="tailrace-") as folder,
        archive.connect(f"{folder}/logs.duckdb", memory_max=memory_max, threads=threads) as connection,
    ):
        try:
            connection.execute(f"SET temp_directory = {quoted(folder)}; SET preserve_insertion_order = false")
            # A file that goes with the store need not be put in order at its end: that took a fifth of all the time.
            connection.execute("PRAGMA disable_checkpoint_on_shutdown; CREATE SCHEMA raw")
            store = Store(connection, _read(connection, paths, Path(folder)))
            _relate(store)
        except duckdb.Error as e:
            raise LogError(f"the logs cannot be read: {str(e).strip()}") from e
        yield store


@contextmanager
def empty_store() -> Iterator[Store]:
    """A store without a line: it has every table and view."""
    with archive.connect() as connection:
        connection.execute("CREATE SCHEMA raw")
        _parse(connection, [])
        _look_at_what_is_no_record(connection, Path())
        _join_archives(connection, [])
        store = Store(connection, [])
        _relate(store)
        yield store


def _read(connection: duckdb.DuckDBPyConnection, paths: Sequence[Path], folder: Path) -> list[Path]:
    """Fill the schema `raw`; returns the files read."""
    for tries_left in reversed(range(LISTING_TRIES)):
        files = listed(paths)
        try:
            _parse(connection, [f for f in files if not archived_tag(f)])
            break
        except duckdb.IOException:
            # A file may be rotated away between listing and opening; then there is one of another name.
            if tries_left and any(not file.exists() for file in files):
                continue
            raise
    _look_at_what_is_no_record(connection, folder)
    _join_archives(connection, [f for f in files if archived_tag(f)])
    lines, unread = connection.execute(
        "SELECT (SELECT count(*) FROM raw.every_line), (SELECT count(*) FROM raw.unread)"
    ).fetchall()[0]
    if not lines:
        where = ", ".join(map(str, paths))
        raise LogError(
            f"none of the {unread} lines in {where} is a record" if unread else f"the logs in {where} are empty"
        )
    return files


def listed(paths: Sequence[Path]) -> list[Path]:
    """The files of some logs. Raises LogError when there are none."""
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise LogError(f"there is no {', '.join(missing)}; name the folder with the logs of the gateways and workers")
    files = log_files(paths)
    if not files:
        where = ", ".join(map(str, paths))
        raise LogError(f"no log (*.jsonl, *.jsonl.zst or an archive of `tailrace logs compact`) lies in {where}")
    return files


def _parse(connection: duckdb.DuckDBPyConnection, files: Sequence[Path]) -> None:
    columns = every_column().values()
    connection.execute("DROP TABLE IF EXISTS raw.lines")
    names = ", ".join(f"{c.quoted} {c.type}" for c in columns)
    connection.execute(f"CREATE TABLE raw.lines ({names}, file VARCHAR, is_record BOOLEAN)")
    if files:
        _insert(connection, files, "filename")
    connection.execute(
        "CREATE OR REPLACE TABLE raw.read_files AS SELECT unnest(?::VARCHAR[]) AS file", [[*map(stem_of, files)]]
    )


def _insert(connection: duckdb.DuckDBPyConnection, files: Sequence[Path], file: str) -> None:
    columns = every_column().values()
    types = ", ".join(f"{quoted(c.name)}: {quoted(c.type)}" for c in columns)
    names = ", ".join(c.quoted for c in columns)
    connection.execute(
        f"INSERT INTO raw.lines SELECT {names}, {file}, {is_record()} "
        f"FROM read_json([{', '.join(map(exactly, files))}], "
        f"format = 'newline_delimited', columns = {{{types}}}, ignore_errors = true, filename = true, "
        f"maximum_object_size = {OBJECT_BYTES_MAX})"
    )


def _look_at_what_is_no_record(connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
    """Take out what is no record, keep what a torn line has behind it, and note the rest."""
    connection.execute("CREATE TABLE raw.unread_now (file VARCHAR, kind VARCHAR, text VARCHAR)")
    doubtful = connection.execute("SELECT DISTINCT file FROM raw.lines WHERE NOT is_record ORDER BY file").fetchall()
    if not doubtful:
        return
    connection.execute("DELETE FROM raw.lines WHERE NOT is_record")
    for (file,) in doubtful:
        rescued, kinds, texts = [], [], []
        with ExitStack() as stack:
            for line in lines_of(Path(file), stack):
                tally = Tally()
                read = read_line(line, TAGS, tally)
                if tally.torn or tally.bad:
                    kinds.append("torn" if tally.torn else "bad")
                    # One that was rescued stands at the end of its line.
                    start = line.rfind(b'{"v":') if read is not None else len(line)
                    texts.append(line[:start].decode("utf-8", "replace").rstrip("\n")[:TEXT_CHARS_MAX])
                    rescued.append(line[start:])
        connection.execute(
            "INSERT INTO raw.unread_now SELECT ?, unnest(?::VARCHAR[]), unnest(?::VARCHAR[])",
            [stem_of(Path(file)), kinds, texts],
        )
        if any(rescued):
            whole = folder / "rescued.jsonl"
            whole.write_bytes(b"".join(rescued))
            _insert(connection, [whole], quoted(file))


def _join_archives(connection: duckdb.DuckDBPyConnection, files: Sequence[Path]) -> None:
    """Make `raw.T` for each type of record, `raw.unread` and `raw.every_line`, of the lines and the archives."""
    by_tag: dict[str, list[Path]] = {}
    for file in files:
        by_tag.setdefault(archived_tag(file), []).append(file)
    envelope = ", ".join(c.quoted for c in ENVELOPE)
    everything = [f"SELECT {envelope} FROM raw.lines"]
    for tag, columns in RECORDS.items():
        names = ", ".join(c.quoted for c in (*ENVELOPE, *columns))
        source = f"SELECT {names} FROM raw.lines WHERE t = '{tag}'"
        if archives := by_tag.get(tag):
            held = f"{archive.typed(columns)} UNION ALL BY NAME SELECT * FROM {parquet(archives)}"
            same = " AND ".join(f"lines.{name} = archived.{name}" for name in IDENTITY)
            connection.execute(f"DELETE FROM raw.lines USING ({held}) AS archived WHERE lines.t = '{tag}' AND {same}")
            source += f" UNION ALL SELECT {names} FROM ({held})"
            everything.append(f"SELECT {envelope} FROM {parquet(archives)}")
        filled = ", ".join(f"{c.filled} AS {c.quoted}" for c in (*ENVELOPE, *columns))
        connection.execute(f"CREATE VIEW raw.{tag} AS SELECT {filled} FROM ({source})")
    unread = "SELECT file, kind, text FROM raw.unread_now"
    if archives := by_tag.get(UNREAD):
        # A line that was torn when the archive was made may have been whole since.
        unread += f" UNION ALL SELECT file, kind, text FROM {parquet(archives)} WHERE file NOT IN (FROM raw.read_files)"
    connection.execute(f"CREATE VIEW raw.unread AS {unread}")
    connection.execute(f"CREATE VIEW raw.every_line AS {' UNION ALL '.join(everything)}")


def parquet(files: Sequence[Path]) -> str:
    """A relation of archives of one type."""
    return f"read_parquet([{', '.join(map(exactly, files))}], union_by_name = true)"


def _relate(store: Store) -> None:
    """Make what stands on the records: the lives of processes, the offsets of clocks, the views for people."""
    store.connection.execute(table_of_lives(names_come_back=store.value(NAMES_COME_BACK)))
    make_offsets(store.connection, store.offsets)
    for view in VIEWS:
        store.connection.execute(view.sql)
