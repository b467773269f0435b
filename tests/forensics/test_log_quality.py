"""Each defect of a log is found, told with its numbers and with what cannot be said; a whole log has none."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from forensics_fleet import change_lines, drop_lines, write_fleet
from forensics_logbook import HELLO, T0_WALL_US, Logbook, batch, ns, req, wreq, write_gateway

from forensics.quality import Defect, Finding, Severity, check
from forensics.store import open_store
from shared.events import Bye, Evt, Res

NOW_US = 0
"""As if nothing wrote any more: whoever wrote last ran until then."""


def findings(*paths: Path, now_us: int = NOW_US) -> list[Finding]:
    """What the gate finds."""
    with open_store(paths) as store:
        return check(store, now_us=now_us)


def the_one(found: list[Finding], defect: Defect, where: str = "") -> Finding:
    """The finding of this defect, which must be there once."""
    (finding,) = [f for f in found if f.defect is defect and (not where or f.where == where)]
    assert finding.what
    assert finding.cannot
    return finding


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half a minute of a fleet whose logs are whole: enough samples to count what is in flight."""
    folder = tmp_path_factory.mktemp("fleet")
    write_fleet(folder, requests=9_000, per_s=300.0, gateways=1, workers=2, drift_ppm=50.0)
    return folder


@pytest.fixture
def logs(fleet: Path, tmp_path: Path) -> Path:
    """A copy of it to be damaged."""
    for file in fleet.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_a_whole_log_has_no_finding(fleet: Path) -> None:
    """With crashes, deadlines, cancellations and refusals, on two hosts whose clocks drift."""
    assert findings(fleet) == []


def test_lost_lines_are_counted_by_process(logs: Path) -> None:
    """Every hundredth sample is nothing; a fiftieth of all requests is too much to speak of percentiles."""
    lost = drop_lines(logs / "gateway-gw-0.jsonl", "req", every=50)
    found = findings(logs)
    finding = the_one(found, Defect.LOST_LINES)
    assert finding.severity is Severity.REFUSE
    assert (finding.where, finding.numbers["lost"], finding.numbers["dropped"]) == ("gateway-gw-0", lost, 0)
    assert f"{lost:,} of" in finding.what
    assert found[0].severity is Severity.REFUSE


def test_a_single_lost_line_is_a_doubt(logs: Path) -> None:
    """What rests on thousands of lines still stands."""
    drop_lines(logs / "worker-w-1.jsonl", "res", every=20)
    assert {(f.defect, f.severity) for f in findings(logs)} == {(Defect.LOST_LINES, Severity.DOUBT)}


def test_lines_that_the_writer_dropped_are_told_apart(tmp_path: Path) -> None:
    """It says so itself as soon as there is room again."""
    book = Logbook(tmp_path)
    book.write("worker", "w-1", HELLO, at_ms=0)
    book.lose("w-1", 7)
    book.write("worker", "w-1", Evt("log_drop", ns(1), ns(1), {"lines": 7}), at_ms=1)
    book.write("worker", "w-1", Bye("stopped"), at_ms=2)
    finding = the_one(findings(tmp_path), Defect.DROPPED_LINES)
    assert (finding.numbers["lost"], finding.numbers["dropped"]) == (7, 7)
    assert "its writer could not keep up" in finding.what


def test_torn_and_foreign_lines_are_told(logs: Path) -> None:
    """A few are good to know, no more."""
    file = logs / "worker-w-0.jsonl"
    file.write_bytes(b"Killed\n" + file.read_bytes() + b'{"v":1,"host":"ho')
    found = findings(logs)
    assert {(f.defect, f.severity, f.numbers["lines"]) for f in found} == {
        (Defect.TORN_LINES, Severity.NOTE, 1),
        (Defect.BAD_LINES, Severity.NOTE, 1),
    }
    assert "'Killed'" in the_one(found, Defect.BAD_LINES).what


def test_a_log_that_is_read_twice_is_refused(logs: Path) -> None:
    """A copy in another folder would double every rate."""
    (logs / "copy").mkdir()
    (logs / "copy" / "worker-w-0.jsonl").write_bytes((logs / "worker-w-0.jsonl").read_bytes())
    finding = the_one(findings(logs, logs / "copy"), Defect.REPEATED_LINES)
    assert finding.severity is Severity.REFUSE
    assert finding.numbers["lines"] == len((logs / "worker-w-0.jsonl").read_bytes().splitlines())


def test_a_log_whose_beginning_was_rotated_away_is_told(logs: Path) -> None:
    """What that process did before is unknown, and nothing is missed of it."""
    file = logs / "worker-w-0.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[len(lines) // 2 :]))
    (finding,) = findings(logs)
    assert (finding.defect, finding.severity, finding.where) == (Defect.NO_BEGINNING, Severity.NOTE, "worker-w-0")
    assert finding.numbers["first_seq"] == len(lines) // 2 + 1


def test_a_process_without_a_goodbye_is_told_unless_it_still_runs(logs: Path) -> None:
    """Who wrote until now is still at it."""
    for file in logs.iterdir():
        file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))
    assert findings(logs) == []
    found = findings(logs, now_us=T0_WALL_US + 3_600_000_000)
    assert {(f.defect, f.severity) for f in found} == {(Defect.NO_GOODBYE, Severity.DOUBT)}
    assert {f.where for f in found} == {"gateway-gw-0", "worker-w-0", "worker-w-1"}


def test_a_process_that_stood_still_is_told(tmp_path: Path) -> None:
    """Nobody writes a sample while its machine is suspended."""
    book = Logbook(tmp_path)
    book.write("worker", "w-1", HELLO, at_ms=0)
    for at_ms in (1_000, 2_000, 33_000, 34_000):
        book.write("worker", "w-1", Res(10**9, 1.0, [], [], [], [], 1, 1), at_ms=at_ms)
    book.write("worker", "w-1", Bye("stopped"), at_ms=34_001)
    finding = the_one(findings(tmp_path), Defect.SILENCE)
    assert (finding.numbers["longest_ns"], finding.numbers["times"]) == (31 * 10**9, 1)
    assert "31.0 s from 2026-11-30 09:00:02 UTC on" in finding.what


def test_a_step_of_the_wall_clock_is_a_note(tmp_path: Path) -> None:
    """No duration depends on it."""
    book = Logbook(tmp_path)
    book.write("worker", "w-1", HELLO, at_ms=0)
    book.write("worker", "w-1", Evt("clock_step", ns(1), ns(1), {"ns": -2_000_000}), at_ms=1)
    book.write("worker", "w-1", Bye("stopped"), at_ms=2)
    finding = the_one(findings(tmp_path), Defect.WALL_CLOCK_STEPPED)
    assert finding.severity is Severity.NOTE
    assert "-2.0 ms" in finding.what


@pytest.mark.parametrize(
    ("file", "tag", "defect"),
    [
        ("worker-w-0.jsonl", "wreq", Defect.REQUEST_WITHOUT_ATTEMPT),
        ("gateway-gw-0.jsonl", "req", Defect.ATTEMPT_WITHOUT_REQUEST),
        ("worker-w-0.jsonl", "wreq", Defect.BATCH_WITHOUT_ATTEMPT),
        ("worker-w-0.jsonl", "batch", Defect.ATTEMPT_WITHOUT_BATCH),
    ],
)
def test_missing_mates_are_counted_though_no_number_is_missing(logs: Path, file: str, tag: str, defect: Defect) -> None:
    """The other side tells of them: each request has its attempt, each batch its members."""
    gone = drop_lines(logs / file, tag, every=20, renumber=True)
    found = findings(logs)
    finding = the_one(found, defect)
    assert Defect.LOST_LINES not in {f.defect for f in found}
    assert finding.where == file.removesuffix(".jsonl")
    # Lines of the last second, and ends without an answer, are not missed.
    assert 0.8 * gone <= finding.numbers["missing"] <= gone
    assert finding.severity is Severity.REFUSE
    assert 0 < len(finding.numbers["examples"]) <= 3


@pytest.mark.parametrize(
    ("file", "defect", "where"),
    [
        ("worker-w-1.jsonl", Defect.REQUEST_WITHOUT_ATTEMPT, "the log of worker w-1"),
        ("gateway-gw-0.jsonl", Defect.ATTEMPT_WITHOUT_REQUEST, "the log of gateway gw-0"),
    ],
)
def test_a_log_that_is_not_here_at_all_is_named(logs: Path, file: str, defect: Defect, where: str) -> None:
    """Somebody forgot a machine."""
    (logs / file).unlink()
    (finding,) = findings(logs)
    assert (finding.defect, finding.severity) == (defect, Severity.REFUSE)
    assert finding.what.startswith(where)


def test_requests_in_parts_have_their_mates(tmp_path: Path) -> None:
    """The parts are attempts of their own, named after the request."""
    book = Logbook(tmp_path)
    whole = req("req-1", parts=2, part="req-1-1")
    write_gateway(book, whole)
    book.write("gateway", "gw-1", Bye("stopped"), at_ms=9_000)
    book.write("worker", "w-1", HELLO, at_ms=-5_000)
    members = ["req-1", "req-1-1"]
    book.write("worker", "w-1", batch("b-2", start_ms=66.2, end_ms=97, members=members), at_ms=97.5)
    for member in members:
        book.write("worker", "w-1", wreq(req(member), outcome="DONE"), at_ms=98)
    book.write("worker", "w-1", Bye("stopped"), at_ms=9_000)
    assert findings(tmp_path) == []


def test_littles_law_tells_of_requests_that_nobody_else_misses(logs: Path) -> None:
    """The gateway counted what it held each second: more than its lines account for."""
    gone = 0
    for file, tag in (("gateway-gw-0.jsonl", "req"),):
        gone += drop_lines(logs / file, tag, every=5, renumber=True)
    finding = the_one(findings(logs), Defect.LITTLES_LAW)
    assert finding.severity is Severity.REFUSE
    assert finding.numbers["by_lines"] < 0.9 * finding.numbers["held"]
    assert "Little's law fails for gateway gw-0" in finding.what


def _shift(by_ns: int, fields: bytes, since_ns: int = 0) -> Callable[[bytes], bytes]:
    """Move some stamps of every request's line."""

    def change(line: bytes) -> bytes:
        if b'"t":"req"' not in line:
            return line

        def moved(m: re.Match[bytes]) -> bytes:
            return m[1] + b"%d" % (int(m[2]) + by_ns if int(m[2]) > since_ns else int(m[2]))

        return re.sub(rb'("w[' + fields + rb']":)(\d+)', moved, line)

    return change


def test_a_clock_that_is_one_by_name_only_is_found(logs: Path) -> None:
    """A machine that was cloned while it ran has its twin's boot id."""
    file = logs / "gateway-gw-0.jsonl"
    change_lines(file, lambda line: line.replace(b'"worker_clock":"boot-1/', b'"worker_clock":"boot-0/'))
    finding = the_one(findings(logs), Defect.IMPOSSIBLE_CLOCK)
    assert finding.numbers["by_ns"] > 70 * 10**9
    assert "worker w-1" in finding.what


def test_a_step_between_two_hosts_is_found(logs: Path) -> None:
    """The worker's machine was suspended for 30 ms, say: its clock stands while others go on."""
    with open_store([logs]) as store:
        since_ns = store.value("SELECT max(w1) - 10000000000 FROM attempts WHERE clock LIKE 'boot-1%'")
    only_far = _shift(-30_000_000, b"0-8", since_ns)
    change_lines(
        logs / "gateway-gw-0.jsonl", lambda line: only_far(line) if b'"worker_clock":"boot-1' in line else line
    )
    found = findings(logs)
    finding = the_one(found, Defect.CLOCKS_CONTRADICT)
    assert finding.severity is Severity.DOUBT
    assert 25_000_000 < finding.numbers["by_ns"] <= 30_000_000


def test_stamps_out_of_order_are_found(logs: Path) -> None:
    """No segment within one clock can be negative."""
    count = change_lines(logs / "gateway-gw-0.jsonl", _shift(-(10**9), b"6"))
    finding = the_one(findings(logs), Defect.STAMPS_OUT_OF_ORDER, "forward")
    assert finding.numbers["requests"] == count
    assert finding.numbers["by_ns"] > 0.9 * 10**9


def test_the_gravest_comes_first_and_all_goes_to_json(logs: Path) -> None:
    """Whoever reads one line reads the most important one."""
    drop_lines(logs / "gateway-gw-0.jsonl", "req", every=50)
    file = logs / "worker-w-0.jsonl"
    file.write_bytes(b"Killed\n" + file.read_bytes())
    found = findings(logs)
    weights = [list(Severity).index(f.severity) for f in found]
    assert weights == sorted(weights)
    assert set(found[0].to_json()) == {"defect", "severity", "what", "cannot", "where", "numbers"}
