"""The event log: typed records to JSON lines, written by a thread so that neither the event loop nor the device waits.

`write` only stamps a record and puts it into a bounded queue. When that is full the record is dropped and counted; the
count is written as an `evt` of kind `log_drop` as soon as there is room. Each flush interval the thread takes what has
come and passes it through structlog, a block at a time since a passage costs more than a line: one processor encodes
the block, each record behind its envelope, and the logger at the end of the chain is the file. It is rotated by size
and the oldest rotated ones are deleted, so the disk that one process may use is bounded too. Nothing is synced: a
killed process loses at most the last flush interval.
"""

import contextlib
import itertools
import os
import socket
import threading
from collections import deque
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import msgspec
import structlog

from shared import clock
from shared.events import LOG_VERSION, Bye, Event, Evt

FLUSH_INTERVAL_S = 0.05
QUEUE_MAX = 100_000
BLOCK_MAX = 1_000
"""Records encoded and written at once."""
FILE_BYTES_MAX = 64 << 20
FILES_MAX = 16

Stamped = tuple[int, int, int, Event]
"""A record with its `seq`, `mono` and `wall_us`."""

_encode = msgspec.json.Encoder().encode


class EventLog:
    """Writes `DIRECTORY/PROC-INST.jsonl`. Give it to whoever has facts to tell; `close` it last."""

    def __init__(
        self,
        directory: Path,
        proc: str,
        inst: str,
        *,
        queue_max: int = QUEUE_MAX,
        file_bytes_max: int = FILE_BYTES_MAX,
        files_max: int = FILES_MAX,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{proc}-{inst}.jsonl"
        self.dropped = 0
        self._drop_lock = threading.Lock()
        self._seq = itertools.count(1)
        self._queue_max = queue_max
        self._queue: deque[Stamped] = deque()
        static = {
            "v": LOG_VERSION,
            "host": socket.gethostname(),
            "clock": clock.clock_id(),
            "pid": os.getpid(),
            "proc": proc,
            "inst": inst,
        }
        self._prefix = _encode(static)[:-1]
        # No level, no context: a record is a fact, not a message.
        self._file = _RotatedFile(self.path, file_bytes_max, files_max)
        self._log = structlog.BoundLoggerBase(self._file, [self._render], {})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="event log", daemon=True)
        self._thread.start()

    def write(self, record: Event) -> None:
        """Note a fact; never blocks, from any thread."""
        if len(self._queue) >= self._queue_max:
            next(self._seq)  # the gap in the numbers tells of the loss, too
            self._drop(1)
            return
        if self.dropped:
            self._note_drops()
        self._put(record)

    def _put(self, record: Event) -> None:
        self._queue.append((next(self._seq), clock.now_ns(), clock.wall_us(), record))

    def _drop(self, count: int) -> None:
        with self._drop_lock:
            self.dropped += count

    def _note_drops(self) -> None:
        with self._drop_lock:
            dropped, self.dropped = self.dropped, 0
        now = clock.now_ns()
        self._put(Evt("log_drop", now, now, {"lines": dropped}))

    def close(self, reason: str) -> None:
        """Write the farewell, flush everything and stop the thread."""
        if self.dropped:
            self._note_drops()
        self._put(Bye(reason))  # beyond the bound, if need be
        self._stop.set()
        self._thread.join()

    # -- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.wait(FLUSH_INTERVAL_S):
            self._flush()
        self._flush()
        self._file.close()

    def _flush(self) -> None:
        while self._queue:
            block = [self._queue.popleft() for _ in range(min(len(self._queue), BLOCK_MAX))]
            self._log._proxy_to_logger("write", None, block=block)

    def _render(
        self, _logger: Any, _method: str, event: MutableMapping[str, Any]
    ) -> tuple[tuple[bytes], dict[str, Any]]:
        parts: list[bytes] = []
        block: list[Stamped] = event["block"]
        for seq, mono, wall_us, record in block:
            try:
                line = _encode(record)
            except Exception:
                self._drop(1)  # one that is no JSON, of a broken text say, must not end the log
                continue
            parts += (self._prefix, b',"seq":%d,"mono":%d,"wall_us":%d,' % (seq, mono, wall_us), line[1:], b"\n")
        return (b"".join(parts),), {}


class _RotatedFile:
    """What the thread writes to."""

    def __init__(self, path: Path, file_bytes_max: int, files_max: int) -> None:
        self._path = path
        self._file_bytes_max = file_bytes_max
        self._files_max = files_max
        self._rotated: deque[Path] = deque()
        self._rotations = 0
        self._file = path.open("ab", buffering=0)
        self._size = self._file.tell()

    def write(self, block: bytes) -> None:
        """Write whole lines; rotate when the file is full."""
        try:
            self._file.write(block)
        except OSError:
            # A full disk must not take the service down; the gap in `seq` shows what is missing.
            return
        self._size += len(block)
        if self._size >= self._file_bytes_max:
            self._rotate()

    def _rotate(self) -> None:
        self._size = 0
        old = self._path.with_name(f"{self._path.stem}.{self._rotations + 1:06d}.jsonl")
        try:
            with contextlib.suppress(FileNotFoundError):
                self._path.rename(old)
            file = self._path.open("ab", buffering=0)
        except OSError:
            # Somebody took the directory away, say: go on with the file at hand, and try again a file later.
            return
        self._file.close()
        self._file = file
        self._rotations += 1
        self._rotated.append(old)
        while len(self._rotated) >= self._files_max:
            self._rotated.popleft().unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
