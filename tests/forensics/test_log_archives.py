"""Archives hold everything that the logs hold, may be made again at any time, and are read as logs are."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from forensics_fleet import compress, write_fleet
from forensics_logbook import T0_WALL_US, Logbook, req, write_gateway, write_worker

from forensics.audit import audit
from forensics.compact import compact
from forensics.explain import explain, to_json
from forensics.files import archived_tag, log_files
from forensics.load import LogLine, Logs, Tally, read_logs
from forensics.quality import check
from forensics.store import LogError, Store, open_store
from forensics.views import VIEWS
from shared.events import Bye, Event, Req


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """The logs of a small fleet, with a line that is torn and one that is no record."""
    folder = tmp_path / "logs"
    write_fleet(folder, file_bytes_max=150_000)
    with (folder / "worker-w-0.jsonl").open("ab") as file:
        file.write(b'Killed\n{"v":1,"host":"ho')
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where the archives go."""
    return tmp_path / "archive"


def everything(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all views."""
    return {view.name: sorted(store.rows(f"SELECT * FROM {view.name}"), key=repr) for view in VIEWS}


def in_any_order(lines: Iterator[LogLine[Event]]) -> list[str]:
    """Lines as texts, to be compared as sets are."""
    return sorted(map(repr, lines))


@contextmanager
def unchanged(folder: Path) -> Iterator[None]:
    """Nothing in a folder changes meanwhile, not even a time."""
    before = {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.iterdir()}
    yield
    assert {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.iterdir()} == before


def test_an_archive_tells_what_the_logs_told(logs: Path, out: Path) -> None:
    """Every row of every view, every finding, every line, what could not be read included."""
    with unchanged(logs):
        done = compact([logs], out)
    with open_store([logs]) as store:
        rows, found, report = everything(store), check(store, now_us=0), store.report()
    with open_store([out]) as store:
        assert everything(store) == rows
        assert check(store, now_us=0) == found
        assert (store.report().lines, store.report().torn, store.report().bad) == (report.lines, 1, 1)
    assert done.added == report.lines - 2
    assert in_any_order(read_logs([out])) == in_any_order(read_logs([logs]))
    assert sum(f.stat().st_size for f in out.iterdir()) < 0.3 * sum(f.stat().st_size for f in logs.iterdir())


def test_there_is_a_file_for_each_type_and_hour(tmp_path: Path, out: Path) -> None:
    """One can delete or move a day by its name."""
    book = Logbook(tmp_path / "logs")
    write_gateway(book, req("req-a"), req("req-b", begun_ms=3_600_000))
    compact([tmp_path / "logs"], out)
    names = sorted(file.name for file in out.iterdir())
    assert names == ["hello-20261130T08.parquet", "req-20261130T09.parquet", "req-20261130T10.parquet"]


def test_compacting_again_changes_nothing(logs: Path, out: Path) -> None:
    """Whoever runs it by the minute pays for what is new only."""
    compact([logs], out)
    with unchanged(out):
        assert compact([logs], out).added == 0
        for file in log_files([logs]):
            compress(file)
            file.unlink()
        assert compact([logs], out).added == 0


def test_what_is_new_is_added_to_the_hour(tmp_path: Path, out: Path) -> None:
    """A log that is still written is archived as far as it is; a torn line of it becomes a whole one later."""
    folder = tmp_path / "logs"
    book = Logbook(folder)
    write_gateway(book, req("req-a"))
    bye = book.line("gateway", "gw-1", Bye("stopped"), at_ms=300)
    file = folder / "gateway-gw-1.jsonl"
    with file.open("ab") as f:
        f.write(bye[:50])
    compact([folder], out)
    with open_store([out]) as store:
        assert store.report().torn == 1
    file.write_bytes(file.read_bytes()[:-50] + bye)
    assert compact([folder], out).added == 1
    with open_store([out]) as store:
        assert store.rows("SELECT lines, bye FROM processes") == [(3, "stopped")]
        assert store.report().torn == 0


def test_logs_beside_their_archives_are_read_once(logs: Path, out: Path) -> None:
    """As with --remove: what is archived and what is still written are named together, and overlap."""
    compact([logs], out)
    more = Logbook(logs)
    write_gateway(more, req("req-new"))
    with open_store([logs, out]) as store:
        assert store.value("SELECT count(*) FROM requests") == 301
        assert store.value("SELECT sum(repeated) FROM processes") == 0
        assert store.report().torn == 1
    tally = Tally()
    assert in_any_order(read_logs([logs, out], tally=tally)) == in_any_order(read_logs([logs]))
    assert (tally.report().lost, tally.torn) == ({}, 1)


def test_the_commands_tell_the_same_of_an_archive(tmp_path: Path, out: Path) -> None:
    """`explain` and `audit` read archives as they read logs, also within bounds of time, and for a text."""
    folder = tmp_path / "logs"
    book = Logbook(folder)
    r = req("req-0001", label='say "ü"')
    write_gateway(book, r, req("req-0002", begun_ms=5_000))
    write_worker(book, r)
    compact([folder], out)
    for of in (folder, out):
        (told,) = map(to_json, explain(Logs.load([of], since_us=T0_WALL_US - 90_000_000), 'say "ü"'))
        assert told["complete"]
        assert told["e2e_ns"] == 100_000_123
    assert audit([out], now_us=0).statuses == audit([folder], now_us=0).statuses
    assert [r.id for _, r in Logs.load([out], (Req,), needle='say "ü"').of(Req)] == ["req-0001"]
    assert [r.id for _, r in Logs.load([out], (Req,), since_us=T0_WALL_US + 10**6).of(Req)] == ["req-0002"]


def test_a_gap_in_the_numbers_is_seen_in_an_archive(tmp_path: Path, out: Path) -> None:
    """Though its lines lie in several files by type."""
    book = Logbook(tmp_path / "logs")
    write_gateway(book, req("req-a"))
    book.lose("gw-1", 5)
    book.write("gateway", "gw-1", Bye("stopped"), at_ms=500)
    compact([tmp_path / "logs"], out)
    assert Logs.load([out]).report.lost == {"gateway-gw-1": 5}


def test_only_what_nobody_writes_any_more_is_removed(logs: Path, out: Path) -> None:
    """Rotated or compressed, or ended with a goodbye; the rest is named with the reason."""
    alive = logs / "gateway-gw-0.jsonl"
    alive.write_bytes(b"".join(alive.read_bytes().splitlines(keepends=True)[:-1]))
    compress(logs / "worker-w-2.jsonl")
    (logs / "worker-w-2.jsonl").unlink()
    with open_store([logs]) as store:
        before = everything(store)
    rotated = [file for file in logs.iterdir() if ".0000" in file.name]
    done = compact([logs], out, remove=True)
    assert rotated
    assert set(rotated) <= set(done.removed)
    assert logs / "worker-w-2.jsonl.zst" in done.removed
    held_back = dict(done.held_back)
    assert "has not said goodbye" in held_back[alive]
    assert "cannot read" in held_back[logs / "worker-w-0.jsonl"]
    assert {file.name for file in logs.iterdir()} == {"gateway-gw-0.jsonl", "worker-w-0.jsonl"}
    with open_store([logs, out]) as store:
        assert everything(store) == before
    assert compact([logs], out, remove=True).added == 0


def test_a_log_that_grew_meanwhile_is_not_removed(logs: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last lines are not archived yet."""
    grows = logs / "worker-w-1.jsonl"
    remember = Path.replace

    def and_grow(self: Path, target: Path) -> Path:
        with grows.open("ab") as file:
            file.write(b"\n")
        return remember(self, target)

    monkeypatch.setattr(Path, "replace", and_grow)
    done = compact([logs], out, remove=True)
    assert dict(done.held_back)[grows] == "it was written to meanwhile"
    assert grows.exists()


def test_there_must_be_something_to_archive(tmp_path: Path, out: Path) -> None:
    """A wrong folder is an error; a right one that is empty since the last run is not."""
    with pytest.raises(LogError, match="there is no"):
        compact([tmp_path / "nowhere"], out)
    (tmp_path / "empty").mkdir()
    with pytest.raises(LogError, match="no log"):
        compact([tmp_path / "empty"], out)
    assert not out.exists()
    write_gateway(Logbook(tmp_path / "logs"), req("req-a"))
    compact([tmp_path / "logs"], out)
    assert compact([tmp_path / "empty"], out).added == 0
    assert compact([out], out).added == 0


def test_archives_that_lie_among_the_logs_are_left_alone(logs: Path, out: Path) -> None:
    """Whatever is to be removed: they may be all that is left of their logs."""
    compact([logs], logs)
    archives = {file.name for file in logs.iterdir() if archived_tag(file)}
    done = compact([logs], out, remove=True)
    assert done.added > 0
    assert archives <= {file.name for file in logs.iterdir()}


@pytest.mark.parametrize(
    ("name", "tag"),
    [("req-20261130T09.parquet", "req"), ("unread.parquet", "unread"), ("data.parquet", ""), ("req-1.parquet", "")],
)
def test_archives_are_known_by_their_names(name: str, tag: str) -> None:
    """Other people's Parquet files are no logs."""
    assert archived_tag(Path(name)) == tag
