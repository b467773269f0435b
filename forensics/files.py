"""The files of a log: which there are, in which order, and what kind each is.

Writers make `PROC-INST.jsonl` and rotate it to `PROC-INST.000001.jsonl`; either may have been compressed to
`.jsonl.zst`. `tailrace logs compact` makes archives, a Parquet file for each type of record and hour:
`req-20261130T09.parquet`.
"""

import re
from collections.abc import Iterable
from pathlib import Path

PLAIN = ".jsonl"
ZSTD = ".jsonl.zst"
ARCHIVE = ".parquet"

_rotated = re.compile(r"(?P<stem>.+)\.(?P<number>\d+)")
_archive = re.compile(r"(?P<tag>[a-z]+)-\d{8}T\d{2}\.parquet|(?P<unread>unread)\.parquet")


def log_files(paths: Iterable[Path]) -> list[Path]:
    """The files to read, each process' from the oldest to the newest; a folder stands for every log in it.

    Of a file that lies beside its compressed self only the one not compressed is read.
    """
    found = set[Path]()
    for path in paths:
        found.update(child for child in path.iterdir() if is_log(child)) if path.is_dir() else found.add(path)
    twice = {path for path in found if path.name.endswith(ZSTD) and path.with_suffix("") in found}
    return sorted(found - twice, key=_age)


def is_log(path: Path) -> bool:
    """True for a name that a log or an archive of ours has."""
    return path.name.endswith((PLAIN, ZSTD)) or bool(archived_tag(path))


def archived_tag(path: Path) -> str:
    """Which type of record an archive holds; empty for a file that is no archive."""
    match = _archive.fullmatch(path.name)
    return match["tag"] or match["unread"] if match else ""


def stem_of(path: Path) -> str:
    """The name of a log without its ending: that of its process, and its number when it was rotated."""
    return path.name.removesuffix(".zst").removesuffix(PLAIN)


def is_rotated(path: Path) -> bool:
    """True for a log that its writer has put away and will not touch again."""
    return bool(_rotated.fullmatch(stem_of(path)))


def _age(path: Path) -> tuple[str, str, float]:
    if m := _rotated.fullmatch(stem_of(path)):
        return str(path.parent), m["stem"], int(m["number"])
    return str(path.parent), stem_of(path), float("inf")
