"""The store reads logs whole whatever state their writers left them in, and says what is missing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from forensics_fleet import compress, small_store, write_fleet
from forensics_logbook import HELLO, Logbook, ns, req, write_gateway, write_worker

from forensics import store as storing
from forensics.load import TAGS, Logs, read_logs
from forensics.schema import ENVELOPE, RECORDS, every_column, sql_type
from forensics.store import LogError, Store, open_store
from shared.events import Bye, Clk, Evt, PeerOffset, Req, Res


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Store]]:
    """The logs of a small fleet, and their store."""
    folder = tmp_path_factory.mktemp("fleet")
    with small_store(folder) as store:
        yield folder, store


def records_in(store: Store, tag: str) -> list[tuple[Any, ...]]:
    """Every record of a type, the envelope first, as the columns tell it."""
    names = ", ".join(c.quoted for c in (*ENVELOPE, *RECORDS[tag]))
    return sorted(map(_plain, store.rows(f"SELECT {names} FROM raw.{tag}")), key=repr)


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(tuple(tuple(p.values()) for p in v) if v and isinstance(v, list) and isinstance(v[0], dict) else v
                 for v in row)  # fmt: skip


def records_read(folder: Path, tag: str) -> list[tuple[Any, ...]]:
    """The same as the reader of lines gives it."""
    found = []
    for envelope, record in read_logs([folder], [TAGS[tag]]):
        values: list[Any] = []
        for column, value in zip(RECORDS[tag], msgspec.structs.astuple(record), strict=True):
            if column.type == "JSON":
                value = msgspec.json.encode(value).decode()
            elif value and isinstance(value, list) and isinstance(value[0], PeerOffset):
                value = tuple(msgspec.structs.astuple(peer) for peer in value)
            values.append(value)
        found.append((*msgspec.structs.astuple(envelope), *values))
    return sorted(found, key=repr)


@pytest.mark.parametrize("tag", sorted(TAGS))
def test_every_record_is_a_row_with_all_its_fields(small: tuple[Path, Store], tag: str) -> None:
    """Fields that a line leaves out have the defaults that the reader of lines gives them."""
    folder, store = small
    assert records_in(store, tag) == records_read(folder, tag)


def test_rare_types_of_fields_come_back_as_written(tmp_path: Path) -> None:
    """Lists of offsets, facts by name and numbers by name."""
    book = Logbook(tmp_path)
    book.write("gateway", "gw-1", Clk(1, 2, 3, [PeerOffset("w-1", "clock-b", -(1 << 62), 1 << 62, 7)]), at_ms=1)
    book.write("gateway", "gw-1", Evt("gc", 1, 2, {"generation": 2, "text": 'say "ü"'}), at_ms=2)
    book.write("gateway", "gw-1", Res(1, 2.5, [1.0], [], [], [], 1, 1, queued={"minilm/1": 4}), at_ms=3)
    with open_store([tmp_path]) as store:
        for tag in ("clk", "evt", "res"):
            assert records_in(store, tag) == records_read(tmp_path, tag)


def test_every_field_has_a_column_type_and_each_name_one(small: tuple[Path, Store]) -> None:
    """A new field of a type that no column stands for must not wait for a user to find it."""
    assert len(every_column()) > 100
    with pytest.raises(TypeError, match="no column type"):
        sql_type(set[int])


def test_a_torn_last_line_is_skipped_and_counted(tmp_path: Path) -> None:
    """A process that was killed in mid-line costs that line and nothing else."""
    book = Logbook(tmp_path)
    write_gateway(book, req("req-0001"))
    with (tmp_path / "gateway-gw-1.jsonl").open("ab") as file:
        file.write(book.line("gateway", "gw-1", Bye("stop"), at_ms=1)[:60])
    with open_store([tmp_path]) as store:
        assert store.value("SELECT count(*) FROM requests") == 1
        assert (store.report().torn, store.report().bad, store.report().lines) == (1, 0, 3)
        assert store.rows("SELECT file, kind FROM unread_lines") == [("gateway-gw-1", "torn")]


def test_the_first_line_of_a_restarted_process_survives_the_torn_line_before_it(tmp_path: Path) -> None:
    """It stands behind the torn one, on the same line of the file."""
    book = Logbook(tmp_path)
    torn = book.line("worker", "w-1", Bye("stop"), at_ms=0)[:40]
    (tmp_path / "worker-w-1.jsonl").write_bytes(torn + book.line("worker", "w-1", HELLO, at_ms=1))
    with open_store([tmp_path]) as store:
        assert store.value("SELECT tailrace FROM processes") == HELLO.tailrace
        assert store.rows("SELECT kind, text FROM unread_lines") == [("torn", torn.decode())]


def test_what_is_no_record_is_counted_and_unknown_fields_are_passed_over(tmp_path: Path) -> None:
    """Neither noise nor a newer version stops the reading; the counts are those of the reader of lines."""
    book = Logbook(tmp_path)
    later = book.line("worker", "w-1", HELLO, at_ms=0).replace(b'"hello"', b'"prophecy"')
    more = book.line("worker", "w-1", HELLO, at_ms=1).replace(b'"cores"', b'"a_later_field":[1,{}],"cores"')
    less = book.line("worker", "w-1", Evt("gc", ns(1), ns(2)), at_ms=2).replace(b'"kind":"gc",', b"")
    (tmp_path / "worker-w-1.jsonl").write_bytes(b"Killed\n" + b"[1,2]\n" + b"\xff\xfe\n" + later + more + less)
    report = Logs.load([tmp_path]).report
    with open_store([tmp_path]) as store:
        assert store.value("SELECT count(*) FROM raw.hello") == 1
        assert store.report() == report
        assert (report.lines, report.bad) == (6, 5)


@pytest.mark.parametrize("how", ["plain", "zstd", "both"])
def test_rotated_and_compressed_files_are_read_once(tmp_path: Path, how: str) -> None:
    """zstd leaves the file it compressed beside the new one: that must not count twice."""
    write_fleet(tmp_path, file_bytes_max=100_000)
    files = sorted(tmp_path.iterdir())
    assert len(files) > 6
    with open_store([tmp_path]) as store:
        before = store.rows("SELECT * FROM requests ORDER BY id")
    for file in files if how != "plain" else ():
        compress(file)
        if how == "zstd":
            file.unlink()
    with open_store([tmp_path]) as store:
        assert store.rows("SELECT * FROM requests ORDER BY id") == before
        assert len(store.files) == len(files)
    assert len(Logs.load([tmp_path], [Req]).of(Req)) == len(before) == 300


def test_a_compressed_file_that_was_cut_gives_what_is_there(tmp_path: Path) -> None:
    """As when the disk was full, or a copy is still under way."""
    write_fleet(tmp_path, requests=2_000)
    file = tmp_path / "gateway-gw-0.jsonl"
    whole = len(Logs.load([file], [Req]).of(Req))
    cut = compress(file)
    file.unlink()
    cut.write_bytes(cut.read_bytes()[:-20_000])
    with open_store([cut]) as store:
        left = store.value("SELECT count(*) FROM requests")
        assert 0 < left < whole
        assert store.report() == Logs.load([cut]).report
        assert store.report().torn == 1


def test_processes_of_several_hosts_are_told_apart(small: tuple[Path, Store]) -> None:
    """One row a life, whole from its first line to its goodbye."""
    rows = small[1].rows("SELECT proc, inst, host, lines, lost, repeated, hello, bye FROM processes ORDER BY ALL")
    assert [(proc, inst, host) for proc, inst, host, *_ in rows] == [
        ("gateway", "gw-0", "host-0"), ("gateway", "gw-1", "host-0"), ("worker", "w-0", "host-0"),
        ("worker", "w-1", "host-1"), ("worker", "w-2", "host-0"), ("worker", "w-3", "host-1"),
    ]  # fmt: skip
    assert {row[4:] for row in rows} == {(0, 0, True, "stopped")}
    assert sum(row[3] for row in rows) == small[1].report().lines


def test_a_name_that_comes_back_is_a_second_life(tmp_path: Path) -> None:
    """Numbers begin anew with its hello; what is lost is lost in one of the lives."""
    for begun_ms in (0, 1_000):
        book = Logbook(tmp_path)
        book.write("worker", "w-1", HELLO, at_ms=begun_ms)
        book.lose("w-1", 12 if begun_ms else 0)
        book.write("worker", "w-1", Bye("stopped"), at_ms=begun_ms + 5)
    with open_store([tmp_path]) as store:
        assert store.rows("SELECT lines, lost, repeated, bye FROM processes ORDER BY first_at") == [
            (2, 0, 0, "stopped"),
            (2, 12, 0, "stopped"),
        ]
        assert store.report().lost == {"worker-w-1": 12}


def test_names_of_folders_are_no_patterns(tmp_path: Path) -> None:
    """A folder may be called as somebody likes."""
    folder = tmp_path / "logs [1]*? of o'clock"
    write_gateway(Logbook(folder), req("req-0001"))
    with open_store([folder]) as store:
        assert store.value("SELECT id FROM requests") == "req-0001"


def test_a_file_that_is_rotated_away_meanwhile_is_found_under_its_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy gateway does that while somebody reads."""
    book = Logbook(tmp_path)
    write_gateway(book, req("req-0001"))
    list_files, rotate = storing.log_files, iter([True])

    def then_rotate(paths: Any) -> list[Path]:
        files = list_files(paths)
        if next(rotate, False):
            files[0].rename(tmp_path / "gateway-gw-1.000001.jsonl")
        return files

    monkeypatch.setattr(storing, "log_files", then_rotate)
    with open_store([tmp_path]) as store:
        assert store.value("SELECT count(*) FROM requests") == 1


def test_wrong_input_is_named(tmp_path: Path) -> None:
    """What was expected, and what is there."""
    empty, noise = tmp_path / "empty", tmp_path / "noise"
    for folder in (empty, noise):
        folder.mkdir()
    (empty / "notes.parquet").write_bytes(b"PAR1")
    (noise / "x.jsonl").write_text("hello\n{}\n")
    for path, text in ((tmp_path / "nowhere", "there is no"), (empty, "no log"), (noise, "none of the 2 lines")):
        with pytest.raises(LogError, match=text), open_store([path]):
            pass
    (noise / "x.jsonl").write_bytes(b"")
    with pytest.raises(LogError, match="are empty"), open_store([noise]):
        pass


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables lie in a file of their own, which goes with the store."""
    folder, logs = tmp_path / "tmp", tmp_path / "logs"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    write_worker(Logbook(logs), req("req-0001"))
    with open_store([logs]) as store:
        assert list(folder.iterdir())
    assert not list(folder.iterdir())
    with pytest.raises(duckdb.Error):
        store.rows("SELECT 1")
