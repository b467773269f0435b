"""Logs of a whole fleet for the tests of the store, and ways to damage them."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

from bench.make_logs import Fleet, Plan
from forensics.store import Store, open_store

_seq = re.compile(rb'"seq":(\d+)')
SMALL = {"requests": 300, "per_s": 600.0, "crashed": 0.02, "late": 0.02, "left": 0.02, "refused": 0.02}
"""Half a second of two gateways and four workers on two hosts, with every fate."""


def write_fleet(folder: Path, **plan: Any) -> Fleet:
    """Write the logs of a fleet; returns it, since it knows what its clocks truly did."""
    fleet = Fleet(Plan(**(SMALL | plan)), folder)
    fleet.run()
    return fleet


@contextmanager
def small_store(folder: Path, **plan: Any) -> Iterator[Store]:
    """A store of such logs."""
    write_fleet(folder, **plan)
    with open_store([folder]) as store:
        yield store


def change_lines(file: Path, change: Callable[[bytes], bytes]) -> int:
    """Replace each line of a log (with what is empty it is gone); returns how many are other now."""
    before = file.read_bytes().splitlines(keepends=True)
    after = [change(line) for line in before]
    file.write_bytes(b"".join(after))
    return sum(a != b for a, b in zip(before, after, strict=True))


def drop_lines(file: Path, tag: str, *, every: int = 1, renumber: bool = False) -> int:
    """Take every so-maniest record of a type out of a log; renumbered, nobody can see it by the numbers.

    Returns how many are gone.
    """
    kept, seen, gone = [], 0, 0
    for line in file.read_bytes().splitlines(keepends=True):
        if b'"t":"%s"' % tag.encode() in line:
            seen += 1
            if seen % every == 0:
                gone += 1
                continue
        if renumber:
            seq = int(_seq.findall(line)[0])
            line = _seq.sub(b'"seq":%d' % (seq - gone), line, count=1)
        kept.append(line)
    file.write_bytes(b"".join(kept))
    return gone


def compress(file: Path) -> Path:
    """What `zstd FILE` does, where there is no such program."""
    target = file.with_name(f"{file.name}.zst")
    how = "header = false, delim = '\x1f', quote = '', escape = ''"
    with duckdb.connect() as connection:
        lines = f"read_csv('{file}', columns = {{'line': 'VARCHAR'}}, auto_detect = false, new_line = '\\n', {how})"
        copy = "FORMAT csv, HEADER false, DELIMITER '\x1f', QUOTE '', ESCAPE '', COMPRESSION zstd"
        connection.execute(f"COPY (SELECT line FROM {lines}) TO '{target}' ({copy})")
    return target
