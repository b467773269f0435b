"""The same log with less in it: which records earn their bytes, and does a diagnosis only read the names of events?

Lines are numbered anew: what was taken out on purpose must not look like what was lost.
"""

from collections.abc import Collection
from pathlib import Path

from forensics import archive
from forensics.archive import exactly, quoted
from forensics.files import archived_tag, log_files
from forensics.schema import RECORDS

_ENVELOPE = "clock, pid, proc, inst"


def ablate(logs: Path, out: Path, *, without: Collection[str] = (), procs: Collection[str] = ()) -> None:
    """Copy the archives in `logs` to `out`, without these types of record, and of these kinds of process only (empty:
    of all)."""
    by_tag: dict[str, list[Path]] = {}
    for file in log_files([logs]):
        tag = archived_tag(file)
        if tag in RECORDS and tag not in without:
            by_tag.setdefault(tag, []).append(file)
    out.mkdir(parents=True, exist_ok=True)
    kept = f"proc IN ({', '.join(map(quoted, procs))})" if procs else "true"
    with archive.connect() as connection:
        sources = {
            tag: f"read_parquet([{', '.join(map(exactly, files))}], union_by_name = true)"
            for tag, files in by_tag.items()
        }
        if not sources:
            return
        every = " UNION ALL ".join(f"SELECT {_ENVELOPE}, seq FROM {source} WHERE {kept}" for source in sources.values())
        connection.execute(
            f"CREATE TABLE numbers AS SELECT {_ENVELOPE}, seq AS was,"
            f" row_number() OVER (PARTITION BY {_ENVELOPE} ORDER BY seq) AS is_now FROM ({every})"
        )
        for tag, source in sources.items():
            same = " AND ".join(f"n.{name} = a.{name}" for name in _ENVELOPE.split(", "))
            select = (
                f"SELECT a.* REPLACE (n.is_now AS seq) FROM {source} a JOIN numbers n ON {same} AND n.was = a.seq"
                f" ORDER BY a.wall_us, a.inst, n.is_now"
            )
            target = out / by_tag[tag][0].name
            connection.execute(f"COPY ({select}) TO {quoted(target)} (FORMAT parquet, COMPRESSION zstd)")
