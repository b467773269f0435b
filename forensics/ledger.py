"""The ledger of optimisations: what was tried, what it measured, what was concluded. A file of JSON lines that lies in
the user's repository and only grows.

An entry is one line and written by one call under a lock, so two who add at once never mix. Whoever dies while writing
leaves a torn last line: it is reported, the next entry begins on a line of its own, and nothing is repaired. An entry's
number is its place in the file; its id, the hash of its line, stays the same when two branches are merged.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from forensics.compare import Comparison
from forensics.compare_report import to_json as comparison_json
from forensics.run_figures import quantile_name

VERSION = 1
ENTRY_BYTES_MAX = 64 << 10
FILE_BYTES_MAX = 64 << 20
TITLE_CHARS_MAX, NOTE_CHARS_MAX = 200, 8_000
ID_CHARS = 8
RUNS_KEPT_MAX = 100
"""Of so many runs a side, each one's numbers are kept; with more, only what they came to."""
ABOUT = ("tailrace", "python", "torch", "cores", "torch_threads", "gateways", "workers")
"""The facts of the runs that an entry keeps: of those that end with one of these words."""


class LedgerError(Exception):
    """The ledger cannot be read or added to; says why."""


class Conclusion(StrEnum):
    """What became of it."""

    KEPT = "kept"
    REVERTED = "reverted"
    UNDECIDED = "undecided"


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """One optimisation. `comparison` is what `compare` measured, null when nothing was; `commit` is empty when unknown,
    `dirty` when files were changed since. `machine` is where it was noted, `runs` the facts of the logs."""

    v: int
    at_us: int
    title: str
    conclusion: Conclusion
    note: str = ""
    commit: str = ""
    dirty: bool = False
    machine: dict[str, Any] = {}
    runs: dict[str, dict[str, str]] = {}
    comparison: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Numbered:
    """An entry, its place among the entries from 1, and its id."""

    number: int
    id: str
    entry: Entry


@dataclass(frozen=True, slots=True)
class Unread:
    """A line that is no entry."""

    line: int
    why: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """What a file holds."""

    entries: Sequence[Numbered] = ()
    unread: Sequence[Unread] = field(default=())

    def find(self, text: str) -> Numbered:
        """The entry of a number, or of an id or its beginning. Raises LedgerError."""
        if text.isascii() and text.isdigit() and 1 <= int(text) <= len(self.entries):
            return self.entries[int(text) - 1]
        fitting = [n for n in self.entries if text and n.id.startswith(text)]
        if len(fitting) == 1:
            return fitting[0]
        many = "several entries have an id that begins so" if fitting else "no entry has this number or id"
        raise LedgerError(f"{text!r}: {many}; there are {len(self.entries)} entries")


def entry(
    title: str,
    conclusion: Conclusion,
    *,
    at_us: int,
    note: str = "",
    commit: str = "",
    dirty: bool = False,
    machine: Mapping[str, Any] | None = None,
    comparison: Comparison | None = None,
) -> Entry:
    """A new entry. Raises LedgerError when it says too little or too much."""
    if not title.strip() or len(title) > TITLE_CHARS_MAX or "\n" in title:
        raise LedgerError(f"a title is one line of 1 to {TITLE_CHARS_MAX} characters")
    if len(note) > NOTE_CHARS_MAX:
        raise LedgerError(f"the note has {len(note):,} characters; at most {NOTE_CHARS_MAX:,} are kept")
    measured = runs = None
    if comparison is not None:
        measured, runs = _kept(comparison), _facts(comparison)
    return Entry(
        VERSION,
        at_us,
        title.strip(),
        conclusion,
        note.strip(),
        commit,
        dirty,
        dict(machine or {}),
        runs or {},
        measured,
    )


def _kept(c: Comparison) -> dict[str, Any]:
    """What of a comparison is worth its room in a repository: the numbers, not the names of all runs."""
    told = comparison_json(c)
    for side in ("a", "b"):
        runs = told[side].pop("runs")
        told[side] |= {"runs": len(runs), "answered": sum(r["answered"] for r in runs)}
    for measure in told["measures"]:
        if max(len(c.a), len(c.b)) > RUNS_KEPT_MAX:
            del measure["a_runs"], measure["b_runs"]
    told.pop("conditions")
    told["mix"].pop("kinds")
    return told


def _facts(c: Comparison) -> dict[str, dict[str, str]]:
    """Versions and sizes that hold for all runs of a side."""
    found = {}
    for side, runs in (("a", c.a), ("b", c.b)):
        first = runs[0].facts
        found[side] = {
            fact: value
            for fact, value in first.items()
            if fact.rpartition(" ")[2] in ABOUT and all(r.facts.get(fact) == value for r in runs)
        }
    return found


def doubt(conclusion: Conclusion, c: Comparison) -> str:
    """What speaks against a conclusion; empty when nothing does."""
    name = quantile_name(c.quantile)
    latency, throughput = c.measure(name).shift, c.measure("throughput").shift
    better = (latency.shown and latency.estimate < 0) or (throughput.shown and throughput.estimate > 0)
    worse = (latency.shown and latency.estimate > 0) or (throughput.shown and throughput.estimate < 0)
    if conclusion is Conclusion.KEPT and worse:
        return f"kept, though {name} or the throughput is shown to be worse"
    if conclusion is Conclusion.KEPT and not better:
        return f"kept, though neither {name} nor the throughput is shown to be better"
    if conclusion is Conclusion.REVERTED and better and not worse:
        return f"reverted, though {name} or the throughput is shown to be better"
    return ""


def append(path: Path, new: Entry) -> Numbered:
    """Add an entry: all of it or nothing. Returns it with its number. Raises LedgerError."""
    line = msgspec.json.encode(new) + b"\n"
    if len(line) > ENTRY_BYTES_MAX:
        raise LedgerError(f"the entry has {len(line):,} bytes; at most {ENTRY_BYTES_MAX:,} are kept")
    try:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as e:
        raise LedgerError(f"{path} cannot be written: {e.strerror}") from e
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(file).st_size
        if size + len(line) > FILE_BYTES_MAX:
            raise LedgerError(f"{path} would have more than {FILE_BYTES_MAX >> 20} MiB; begin another with --file")
        torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
        block = b"\n" + line if torn else line
        try:
            written = os.write(file, block)
            if written == len(block):
                os.fsync(file)
        except OSError as e:
            os.ftruncate(file, size)
            raise LedgerError(f"{path} cannot be written: {e.strerror}") from e
        if written != len(block):
            os.ftruncate(file, size)
            raise LedgerError(f"{path} cannot be written: the disk is full")
        # Counted under the lock, so that nobody else's entry comes between.
        return next(n for n in reversed(read(path).entries) if n.id == _id(line))
    finally:
        os.close(file)


def read(path: Path) -> Ledger:
    """All entries of a file, and what in it is none. Raises LedgerError when there is no such file."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise LedgerError(f"{path} has more than {FILE_BYTES_MAX >> 20} MiB, so it is no ledger")
        text = path.read_bytes()
    except OSError as e:
        raise LedgerError(f"{path} cannot be read: {e.strerror}; `tailrace ledger add` makes one") from e
    entries: list[Numbered] = []
    unread: list[Unread] = []
    for number, line in _lines(text):
        whole = line.endswith(b"\n")
        try:
            found = _decode(line)
        except msgspec.DecodeError as e:
            unread.append(Unread(number, f"no entry: {e}" if whole else "torn: whoever wrote it did not finish"))
            continue
        if found.v > VERSION:
            unread.append(Unread(number, f"of a newer version ({found.v}); this tailrace reads {VERSION}"))
        else:
            entries.append(Numbered(len(entries) + 1, _id(line), found))
    return Ledger(entries, unread)


_decode = msgspec.json.Decoder(Entry).decode


def _lines(text: bytes) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        if line.strip():
            yield number, line


def _id(line: bytes) -> str:
    return sha256(line.rstrip(b"\n")).hexdigest()[:ID_CHARS]
