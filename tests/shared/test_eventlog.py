"""The event log: whole lines in order, a service that never waits for its disk, and a count of what was lost."""

import contextlib
import gc
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.waiting import eventually_blocking

from shared import clock, eventlog, events
from shared.eventlog import EventLog
from shared.events import Evt, Req

MOMENT = 1_000_000


def note(number: int, *, size: int = 0) -> Evt:
    """A small record with a number to know it by."""
    return Evt("test", MOMENT, MOMENT, {"n": number, "pad": "x" * size})


def lines(folder: Path) -> list[dict[str, Any]]:
    """Every line of every file, the rotated ones first."""
    files = sorted(folder.glob("*.jsonl"), key=lambda p: (p.name.count(".") == 1, p.name))
    return [json.loads(line) for path in files for line in path.read_bytes().splitlines()]


def numbers(folder: Path) -> list[int]:
    """The numbers of the notes, as they lie on the disk."""
    return [line["attrs"]["n"] for line in lines(folder) if line.get("kind") == "test"]


def written(folder: Path, number: int) -> bool:
    """True once the note is on the disk; others are being written, rotated and deleted meanwhile."""
    for path in folder.glob("*.jsonl"):
        with contextlib.suppress(FileNotFoundError):
            if b'"n":%d,' % number in path.read_bytes():
                return True
    return False


class StuckDisk:
    """A file whose `write` stands still until it is let go."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.reached = threading.Event()
        self.go = threading.Event()

    def write(self, data: bytes) -> int:
        self.reached.set()
        self.go.wait()
        return int(self._file.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.fixture
def stuck_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[StuckDisk]]:
    """Log files that are opened now stand still at their first write; the list has them."""
    monkeypatch.setattr(eventlog, "FLUSH_INTERVAL_S", 0.001)
    disks: list[StuckDisk] = []
    really_open = Path.open

    def stuck(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        file = really_open(self, mode, *args, **kwargs)
        if mode != "ab":
            return file
        disks.append(StuckDisk(file))
        return disks[-1]

    monkeypatch.setattr(Path, "open", stuck)
    yield disks
    for disk in disks:
        disk.go.set()


def test_a_record_becomes_a_line_with_its_envelope(tmp_path: Path) -> None:
    """One JSON object a line: who wrote it and when, and the record itself."""
    log = EventLog(tmp_path / "logs", "gateway", "g-1")
    before_ns, before_us = clock.now_ns(), clock.wall_us()
    log.write(Req("a", "trace", "span", "/v2", 200, g0=1, g8=2))
    log.close("stopped")
    assert log.path == tmp_path / "logs" / "gateway-g-1.jsonl"
    first, last = lines(tmp_path / "logs")
    envelope = {
        name: first.pop(name) for name in ("v", "host", "clock", "pid", "proc", "inst", "seq", "mono", "wall_us")
    }
    assert first == {
        "t": "req", "id": "a", "trace_id": "trace", "span_id": "span", "route": "/v2", "status": 200, "g0": 1, "g8": 2
    }  # fmt: skip
    assert (envelope["v"], envelope["proc"], envelope["inst"]) == (events.LOG_VERSION, "gateway", "g-1")
    assert envelope["clock"] == clock.clock_id()
    assert before_ns <= envelope["mono"] <= clock.now_ns()
    assert before_us <= envelope["wall_us"] <= clock.wall_us()
    assert (last["t"], last["reason"], last["seq"]) == ("bye", "stopped", envelope["seq"] + 1)


def test_any_text_stays_within_its_line(tmp_path: Path) -> None:
    """Newlines, quotes and foreign scripts in a record cannot break the log."""
    text = 'a\nb\r"\\\u2028\x00ü'
    log = EventLog(tmp_path, "p", "i")
    log.write(Evt("test", 1, 2, {"n": text}))
    log.close("stopped")
    assert numbers(tmp_path) == [text]


def test_closing_writes_everything_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, nothing missing, the farewell last; also what came in since the last flush."""
    monkeypatch.setattr(eventlog, "FLUSH_INTERVAL_S", 3600)
    log = EventLog(tmp_path, "p", "i")
    for i in range(12_000):  # more than one block
        log.write(note(i))
    log.close("stopped")
    assert numbers(tmp_path) == list(range(12_000))
    written = lines(tmp_path)
    assert [line["seq"] for line in written] == list(range(1, 12_002))
    assert written[-1]["t"] == "bye"


def test_lines_reach_the_disk_while_the_process_lives(tmp_path: Path) -> None:
    """A killed process loses the last flush interval, not its life's work."""
    log = EventLog(tmp_path, "p", "i")
    try:
        log.write(note(1))
        eventually_blocking(lambda: written(tmp_path, 1), "the line is on the disk")
    finally:
        log.close("stopped")


def test_a_restarted_process_appends_to_its_log(tmp_path: Path) -> None:
    """What the life before has written stays."""
    for life in range(2):
        log = EventLog(tmp_path, "p", "i")
        log.write(note(life))
        log.close("stopped")
    assert numbers(tmp_path) == [0, 1]


# -- a disk that cannot follow -----------------------------------------------------------------------------------------


def test_writing_never_waits_for_the_disk(tmp_path: Path, stuck_disk: list[StuckDisk]) -> None:
    """However slow the disk, `write` returns; what finds no room is dropped and counted."""
    log = EventLog(tmp_path, "p", "i", queue_max=10)
    log.write(note(0))
    assert stuck_disk[0].reached.wait(20)
    for i in range(1, 16):
        log.write(note(i))
    assert log.dropped == 5
    stuck_disk[0].go.set()
    eventually_blocking(lambda: written(tmp_path, 10), "the disk has followed")
    log.write(note(99))
    log.close("stopped")
    assert numbers(tmp_path) == [*range(11), 99]
    drop, after, _ = lines(tmp_path)[-3:]
    assert (drop["kind"], drop["attrs"]) == ("log_drop", {"lines": 5}), "told as soon as there is room"
    assert after["attrs"]["n"] == 99
    sequence = [line["seq"] for line in lines(tmp_path)]
    missing = set(range(1, sequence[-1] + 1)) - set(sequence)
    assert len(missing) == 5, "the gap in the numbers tells of the loss, too"


def test_the_farewell_comes_through_a_full_queue(tmp_path: Path, stuck_disk: list[StuckDisk]) -> None:
    """The count of what was lost and the last line of all were once dropped themselves."""
    log = EventLog(tmp_path, "p", "i", queue_max=2)
    log.write(note(0))
    assert stuck_disk[0].reached.wait(20)
    for i in range(1, 6):
        log.write(note(i))
    threading.Timer(0.01, stuck_disk[0].go.set).start()
    log.close("stopped")
    drop, bye = lines(tmp_path)[-2:]
    assert (drop["kind"], drop["attrs"]) == ("log_drop", {"lines": 3})
    assert (bye["t"], bye["reason"]) == ("bye", "stopped")


def test_a_full_disk_does_not_stop_the_service(tmp_path: Path) -> None:
    """Lines are lost, the process is not; nothing is raised into it."""
    (tmp_path / "p-i.jsonl").symlink_to("/dev/full")
    log = EventLog(tmp_path, "p", "i")
    for i in range(100):
        log.write(note(i))
    log.close("stopped")
    assert log.path.is_symlink()


# -- rotation ----------------------------------------------------------------------------------------------------------


def test_the_disk_that_a_process_uses_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are rotated by size and the oldest go; what stays is the newest, whole and in order."""
    monkeypatch.setattr(eventlog, "FLUSH_INTERVAL_S", 0.001)
    log = EventLog(tmp_path, "p", "i", file_bytes_max=4_000, files_max=3)
    for i in range(100):
        log.write(note(i, size=200))
        if i % 5 == 4:
            eventually_blocking(lambda i=i: written(tmp_path, i), "the lines are written")  # type: ignore[misc]
    log.close("stopped")
    files = list(tmp_path.iterdir())
    assert len(files) <= 3
    assert sum(p.stat().st_size for p in files) <= 3 * (4_000 + 5 * 600)
    kept = numbers(tmp_path)
    assert kept == list(range(kept[0], 100))
    assert 10 < len(kept) < 100


def test_a_log_directory_that_was_taken_away_does_not_end_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator who deletes logs of a running process once ended its writing thread at the next rotation."""
    monkeypatch.setattr(eventlog, "FLUSH_INTERVAL_S", 0.001)
    rotations: list[Path] = []
    really_rename = Path.rename

    def rename(self: Path, target: Path) -> Path:
        rotations.append(target)
        return really_rename(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    folder = tmp_path / "logs"
    log = EventLog(folder, "p", "i", file_bytes_max=500, files_max=3)
    log.path.unlink()
    folder.rmdir()
    log.write(note(1, size=600))
    eventually_blocking(lambda: len(rotations) == 1, "a file without a name is to be rotated")
    folder.mkdir()
    log.write(note(2, size=600))
    eventually_blocking(lambda: len(rotations) == 2, "it is tried again, and now it works")
    log.write(note(3))
    log.close("stopped")
    assert numbers(folder) == [3]


# -- threads -----------------------------------------------------------------------------------------------------------


def test_threads_write_side_by_side(tmp_path: Path) -> None:
    """Each thread's records keep their order, every line is whole, and every number is given once."""
    log = EventLog(tmp_path, "p", "i")

    def write(thread: int) -> None:
        for i in range(1_000):
            log.write(note(thread * 10_000 + i))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close("stopped")
    written = numbers(tmp_path)
    assert len(written) == 6_000
    for n in range(6):
        assert [i for i in written if i // 10_000 == n] == [n * 10_000 + i for i in range(1_000)]
    assert sorted(line["seq"] for line in lines(tmp_path)) == list(range(1, 6_002))


def test_a_garbage_collection_in_mid_write_may_write_too(tmp_path: Path) -> None:
    """The watch of the collector writes from within it, on whatever thread and line that happens to be."""
    log = EventLog(tmp_path, "p", "i")

    def notice(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            log.write(Evt("gc", 1, 2))

    def write() -> None:
        for i in range(500):
            log.write(note(i))

    before = gc.get_threshold()
    gc.callbacks.append(notice)
    gc.set_threshold(1)
    try:
        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive(), "the thread waits for a lock that it holds itself"
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(notice)
    log.close("stopped")
    assert numbers(tmp_path) == list(range(500))
    kinds = [line.get("kind") for line in lines(tmp_path)]
    assert kinds.count("gc") > 0
    assert sorted(line["seq"] for line in lines(tmp_path)) == list(range(1, len(kinds) + 1))


def test_a_farewell_of_a_quiet_life_tells_of_no_loss(tmp_path: Path) -> None:
    """The last line of a process that stopped in good order."""
    log = EventLog(tmp_path, "p", "i")
    log.close("asked to")
    (bye,) = lines(tmp_path)
    assert (bye["t"], bye["reason"], bye["seq"]) == ("bye", "asked to", 1)


def test_a_record_that_cannot_be_written_does_not_end_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are encoded by the thread: one that is no JSON is counted as lost, its neighbours are written."""
    monkeypatch.setattr(eventlog, "FLUSH_INTERVAL_S", 0.001)
    log = EventLog(tmp_path, "p", "i")
    log.write(note(1))
    log.write(Evt("test", 1, 2, {"n": "half a character \ud800"}))
    log.write(note(2))
    eventually_blocking(lambda: log.dropped == 1, "the loss is counted")
    log.write(note(3))
    log.close("stopped")
    assert numbers(tmp_path) == [1, 2, 3]
    (drop,) = [line for line in lines(tmp_path) if line.get("kind") == "log_drop"]
    assert drop["attrs"] == {"lines": 1}
