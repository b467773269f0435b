"""Logs are read whole whatever state their writers left them in, and what is missing is counted."""

from pathlib import Path

import pytest
from forensics_logbook import HELLO, T0_WALL_US, Logbook, ns, req, wreq, write_gateway

from forensics.load import AmbiguousId, Logs, Tally, read_logs
from shared.events import Bye, Evt, Hello, Req


def test_every_record_comes_back_as_written(tmp_path: Path) -> None:
    """The reader gives the envelope and the typed record of each line."""
    book = Logbook(tmp_path)
    event = Evt("gc", ns(1), ns(2), {"generation": 2})
    book.write("worker", "w-1", HELLO, at_ms=0)
    book.write("worker", "w-1", event, at_ms=2)
    first, second = read_logs([tmp_path])
    assert first.record == HELLO
    assert second.record == event
    assert second.envelope.seq == 1
    assert second.writer == "worker-w-1"


def test_a_torn_last_line_is_skipped_and_counted(tmp_path: Path) -> None:
    """A process that was killed in mid-line costs that line and nothing else."""
    book = Logbook(tmp_path)
    book.write("worker", "w-1", HELLO, at_ms=0)
    whole = book.line("worker", "w-1", Bye("stop"), at_ms=1)
    with (tmp_path / "worker-w-1.jsonl").open("ab") as file:
        file.write(whole[: len(whole) // 2])
    logs = Logs.load([tmp_path])
    assert [line.record for line in logs.of(Hello)] == [HELLO]
    assert (logs.report.torn, logs.report.bad) == (1, 0)


def test_the_first_line_of_a_restarted_process_survives_the_torn_line_before_it(tmp_path: Path) -> None:
    """A worker that comes back under its name appends its hello right behind the torn line."""
    book = Logbook(tmp_path)
    torn = book.line("worker", "w-1", Bye("stop"), at_ms=0)[:40]
    (tmp_path / "worker-w-1.jsonl").write_bytes(torn + book.line("worker", "w-1", HELLO, at_ms=1))
    logs = Logs.load([tmp_path])
    assert len(logs.of(Hello)) == 1
    assert (logs.report.torn, logs.report.bad) == (1, 0)


def test_lines_that_are_no_record_are_counted(tmp_path: Path) -> None:
    """Neither noise nor a record of a later version stops the reading."""
    book = Logbook(tmp_path)
    later = book.line("worker", "w-1", HELLO, at_ms=0).replace(b'"hello"', b'"prophecy"')
    more = book.line("worker", "w-1", HELLO, at_ms=1).replace(b'"cores"', b'"a_later_field":[1,{}],"cores"')
    (tmp_path / "worker-w-1.jsonl").write_bytes(b"Killed\n" + b"[1,2]\n" + b"\xff\xfe\n" + later + more)
    logs = Logs.load([tmp_path])
    assert len(logs.of(Hello)) == 1
    assert (logs.report.lines, logs.report.bad) == (5, 4)


def test_lost_lines_are_counted_by_process(tmp_path: Path) -> None:
    """A gap in the sequence numbers is a lost line; a restart is not a gap."""
    book = Logbook(tmp_path)
    book.write("worker", "w-1", HELLO, at_ms=0)
    book.lose("w-1", 12)
    book.write("worker", "w-1", Bye("stop"), at_ms=1)
    write_gateway(book, req("req-0001"))
    again = Logbook(tmp_path)
    again.write("worker", "w-1", HELLO, at_ms=2)
    again.write("worker", "w-1", Bye("stop"), at_ms=3)
    assert Logs.load([tmp_path]).report.lost == {"worker-w-1": 12}


def test_rotated_files_are_read_before_the_current_one(tmp_path: Path) -> None:
    """The lines of a process come in the order in which it wrote them."""
    book = Logbook(tmp_path)
    for name in ("gateway-gw-1.000002.jsonl", "gateway-gw-1.000010.jsonl", "gateway-gw-1.jsonl"):
        (tmp_path / name).write_bytes(book.line("gateway", "gw-1", HELLO, at_ms=0))
    tally = Tally()
    assert [line.envelope.seq for line in read_logs([tmp_path], tally=tally)] == [0, 1, 2]
    assert tally.report().files == 3
    assert tally.report().lost == {}


def test_reading_can_be_bounded_by_type_time_and_text(tmp_path: Path) -> None:
    """An hour of logs need not be decoded to explain one request of it."""
    book = Logbook(tmp_path)
    write_gateway(book, req("req-early"), req("req-late", begun_ms=10_000))
    until_us = T0_WALL_US + 5_000 * 1_000
    assert [r.id for _, r in Logs.load([tmp_path], (Req,), until_us=until_us).of(Req)] == ["req-early"]
    assert [r.id for _, r in Logs.load([tmp_path], (Req,), since_us=until_us).of(Req)] == ["req-late"]
    assert [r.id for _, r in Logs.load([tmp_path], needle="req-late").of(Req)] == ["req-late"]
    assert Logs.load([tmp_path], (Hello,)).of(Req) == []


def test_a_text_with_quotes_is_found_in_the_line(tmp_path: Path) -> None:
    """A label is any text; in the log it is escaped as JSON."""
    book = Logbook(tmp_path)
    label = 'say "ü"\\'
    write_gateway(book, req("req-0001", label=label), req("req-0002"))
    assert [r.id for _, r in Logs.load([tmp_path], needle=label).of(Req)] == ["req-0001"]


@pytest.mark.parametrize("query", ["req-1111-aaaa", "order-7", "body-7", "e" * 32, "req-1111", "1-aaaa"])
def test_a_request_is_found_by_any_of_its_names(tmp_path: Path, query: str) -> None:
    """Its id or a piece of it, the client's label, the id in its body, its trace."""
    book = Logbook(tmp_path)
    one = req("req-1111-aaaa", label="order-7", client_id="body-7", trace_id="e" * 32)
    write_gateway(book, one, req("req-2222-bbbb", label="order-8", begun_ms=5))
    assert Logs.load([tmp_path]).find(query) == ["req-1111-aaaa"]


def test_all_requests_with_a_repeated_label_are_found_oldest_first(tmp_path: Path) -> None:
    """A client may send one x-request-id many times, through several gateways."""
    book = Logbook(tmp_path)
    write_gateway(book, req("req-b", label="again", begun_ms=50), req("req-c", label="again", begun_ms=90))
    book.write("gateway", "gw-0", req("req-a", label="again"), at_ms=100)
    assert Logs.load([tmp_path]).find("again") == ["req-a", "req-b", "req-c"]


def test_a_piece_of_several_ids_is_ambiguous_and_a_short_one_is_nothing(tmp_path: Path) -> None:
    """A guess would explain the wrong request."""
    book = Logbook(tmp_path)
    write_gateway(book, req("req-1111-aaaa"), req("req-1111-bbbb"))
    logs = Logs.load([tmp_path])
    with pytest.raises(AmbiguousId) as e:
        logs.find("req-1111")
    assert e.value.ids == ["req-1111-aaaa", "req-1111-bbbb"]
    assert logs.find("req-1") == []
    assert logs.find("") == []


def test_a_request_that_only_its_worker_logged_is_found(tmp_path: Path) -> None:
    """The worker's line has the id too."""
    book = Logbook(tmp_path)
    book.write("worker", "w-1", wreq(req("req-0001")), at_ms=99)
    assert Logs.load([tmp_path]).find("req-0001") == ["req-0001"]
