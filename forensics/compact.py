"""`tailrace logs compact`: logs into archives, a Parquet file for each type of record and hour of the wall clock.

It may be run as often as one likes, on logs still being written too: a line that is in the archives already adds
nothing, and a file to which nothing is added stays as it is. An archive is made beside and moved into place, so a
reader, or a run that is killed, sees the old one or the new one whole. Nothing of the logs is lost on the way, what
could not be read included. They stay, unless they are to be removed, and then only those that nobody writes any more.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from forensics.archive import exactly, quoted, typed
from forensics.files import ARCHIVE, PLAIN, archived_tag, is_rotated, log_files, stem_of
from forensics.schema import ENVELOPE, RECORDS, UNREAD
from forensics.store import LogError, Store, listed, open_store
from shared.events import Envelope

HOUR_US = 3_600_000_000
TAIL_BYTES = 1 << 16
"""The last line of a log that ended in good order is far shorter."""
_FORMAT = "(FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v2)"


@dataclass(frozen=True, slots=True)
class Compaction:
    """What was done. `held_back`: logs that were to be removed and are not, each with the reason."""

    added: int
    written: Sequence[Path]
    removed: Sequence[Path] = ()
    held_back: Sequence[tuple[Path, str]] = ()


def compact(paths: Sequence[Path], out: Path, *, remove: bool = False) -> Compaction:
    """Add all lines of the logs in `paths` (files, or folders of them) to the archives in `out`; makes that folder.

    Archives among `paths` are left as they are. Raises LogError when there are no logs, and `out` has no archives of an
    earlier run either.
    """
    archives = [file for file in log_files([out]) if archived_tag(file)] if out.is_dir() else []
    try:
        sources = [file for file in listed(paths) if not archived_tag(file)]
    except LogError:
        if archives and all(path.exists() for path in paths):
            return Compaction(0, ())
        raise
    if not sources:
        return Compaction(0, ())
    out.mkdir(parents=True, exist_ok=True)
    before = {file: _state(file) for file in sources}
    with open_store([*sources, *archives]) as store:
        added, written = _write(store, out)
        foreign = {file for (file,) in store.rows("SELECT DISTINCT file FROM raw.unread_now WHERE kind = 'bad'")}
    if not remove:
        return Compaction(added, written)
    held_back = [(file, why) for file in sources if (why := _why_not_removed(file, before[file], foreign))]
    kept = {file for file, _ in held_back}
    removed = [file for file in sources if file not in kept]
    for file in removed:
        file.unlink(missing_ok=True)
    return Compaction(added, written, removed, held_back)


def _write(store: Store, out: Path) -> tuple[int, list[Path]]:
    """Write what is new; returns how many lines that were, and the archives that changed."""
    added = 0
    written: list[Path] = []
    groups = store.rows(f"SELECT t, wall_us // {HOUR_US} AS hour, count(*) FROM raw.lines GROUP BY ALL ORDER BY ALL")
    for tag, hour, count in groups:
        columns = (*ENVELOPE, *RECORDS[tag])
        names = ", ".join(f"{c.filled} AS {c.quoted}" for c in columns)
        new = f"SELECT {names} FROM raw.lines WHERE t = {quoted(tag)} AND wall_us // {HOUR_US} = {hour}"
        target = out / f"{tag}-{datetime.fromtimestamp(hour * 3600, UTC):%Y%m%dT%H}{ARCHIVE}"
        if target.exists():
            held = f"{typed(RECORDS[tag])} UNION ALL BY NAME SELECT * FROM read_parquet({exactly(target)})"
            new = f"SELECT {', '.join(c.quoted for c in columns)} FROM ({held}) UNION ALL {new}"
        _replace(store, f"SELECT * FROM ({new}) ORDER BY wall_us, inst, seq", target)
        added, written = added + count, [*written, target]
    return added, written + _write_unread(store, out)


def _write_unread(store: Store, out: Path) -> list[Path]:
    """Keep what could not be read. The unread lines of a log that is still here are always those of now."""
    target = out / f"{UNREAD}{ARCHIVE}"
    now = store.rows("SELECT * FROM raw.unread ORDER BY ALL")
    then = store.rows(f"SELECT * FROM read_parquet({exactly(target)}) ORDER BY ALL") if target.exists() else []
    if now == then:
        return []
    _replace(store, "SELECT * FROM raw.unread ORDER BY ALL", target)
    return [target]


def _replace(store: Store, select: str, target: Path) -> None:
    """Write an archive beside its place, look whether it is whole, and move it there."""
    beside = target.with_name(f".{target.name}.new")
    store.connection.execute(f"COPY ({select}) TO {quoted(beside)} {_FORMAT}")
    wanted, got = store.rows(
        f"SELECT (SELECT count(*) FROM ({select})), (SELECT count(*) FROM read_parquet({exactly(beside)}))"
    )[0]
    if wanted != got:
        beside.unlink()
        raise LogError(f"{target} would have {got} lines instead of {wanted}: is the disk full? Nothing was removed.")
    beside.replace(target)


def _state(file: Path) -> tuple[int, int]:
    """By what one sees that a file was written to; zeros when it is gone, as its writer deletes its oldest."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _why_not_removed(file: Path, before: tuple[int, int], foreign: Collection[str]) -> str:
    """Why a log must stay; empty when it may go."""
    if _state(file) != before:
        return "it was written to meanwhile"
    if stem_of(file) in foreign:
        return "it has lines that this version cannot read"
    if not file.name.endswith(PLAIN) or is_rotated(file) or _ends_with_bye(file):
        return ""
    return "its process has not said goodbye, and may write on"


def _ends_with_bye(file: Path) -> bool:
    with file.open("rb") as f:
        f.seek(max(0, file.stat().st_size - TAIL_BYTES))
        last = f.read().rstrip(b"\n").rpartition(b"\n")[2]
    try:
        return msgspec.json.decode(last, type=Envelope).t == "bye"
    except msgspec.DecodeError:
        return False
