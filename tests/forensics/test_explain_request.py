"""One request is explained from whatever lines there are, and what is missing is said."""

from pathlib import Path

import pytest
from forensics_logbook import HELLO, MS, Logbook, batch, ns, req, wreq, write_gateway, write_worker

from forensics.blame import Doing
from forensics.explain import Explanation, explain, to_json
from forensics.load import Logs
from shared.events import Clk, PeerOffset, Req
from shared.timeline import Class


def _explain(folder: Path, query: str = "req-0001") -> Explanation:
    (found,) = explain(Logs.load([folder]), query)
    return found


def _ns(e: Explanation, name: str) -> int:
    return sum(s.ns for s in e.segments if s.name == name)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """Logs of a gateway and a worker with one request, req-0001."""
    book = Logbook(tmp_path)
    write_gateway(book, req("req-0001", label="order-7"))
    write_worker(book, req("req-0001"))
    return tmp_path


def test_segments_and_classes_sum_to_the_end_to_end_time(whole: Path) -> None:
    """The account is exact, and so is every way of adding it up."""
    e = _explain(whole)
    assert e.e2e_ns == 100_000_123
    assert sum(s.ns for s in e.segments) == e.e2e_ns
    assert sum(e.classes.values()) == e.e2e_ns
    assert e.complete
    assert e.notes == ()


def test_waiting_is_blamed_on_what_the_worker_did(whole: Path) -> None:
    """Sixty milliseconds in the stream: the batch before, 25 ms of it garbage, then the worker asked."""
    e = _explain(whole)
    told = [(p.segment, p.doing, p.batch.batch_id if p.batch else "") for p in e.waited_behind]
    assert told == [
        ("stream_wait", Doing.EXECUTING, "b-1"),
        ("stream_wait", Doing.GC, ""),
        ("stream_wait", Doing.EXECUTING, "b-1"),
        ("stream_wait", Doing.FETCHING, ""),
        ("batch_wait", Doing.GATHERING, ""),
    ]
    for name in ("stream_wait", "batch_wait"):
        assert sum(p.ns for p in e.waited_behind if p.segment == name) == _ns(e, name)
    assert sum(p.ns for p in e.waited_behind if p.doing is Doing.GC) == 25 * MS


def test_the_batch_names_its_members_and_its_padding(whole: Path) -> None:
    """Who shared the pass, and how much of it was for nothing."""
    e = _explain(whole)
    assert e.batch is not None
    assert e.batch.mates == ("mate-0001",)
    assert e.batch.padding_ratio == 0.25


def test_every_request_with_a_repeated_label_is_explained(tmp_path: Path) -> None:
    """An id that a client used three times has three explanations."""
    book = Logbook(tmp_path)
    write_gateway(book, *(req(f"req-000{n}", label="again", begun_ms=200 * n) for n in range(3)))
    found = explain(Logs.load([tmp_path]), "again")
    assert [e.id for e in found] == ["req-0000", "req-0001", "req-0002"]


def test_without_the_workers_log_the_timeline_is_whole_but_the_blame_unknown(tmp_path: Path) -> None:
    """The gateway's line has the worker's stamps, since they came with the answer."""
    write_gateway(Logbook(tmp_path), req("req-0001"))
    e = _explain(tmp_path)
    assert sum(s.ns for s in e.segments) == e.e2e_ns == 100_000_123
    assert {p.doing for p in e.waited_behind} == {Doing.UNKNOWN}
    assert not e.complete
    assert e.notes == ("the log of worker w-1 is missing: mates, device times and what it did are unknown",)
    assert to_json(e)["batch"]["mates"] is None
    assert to_json(e)["batch"]["requests"] == 2


def test_without_the_gateways_log_the_workers_part_is_exact(tmp_path: Path) -> None:
    """A killed gateway took its line with it; the worker's tells from the pull to the sending of the answer."""
    r = req("req-0001")
    write_worker(Logbook(tmp_path), r)
    e = _explain(tmp_path)
    assert e.partial
    assert not e.complete
    assert e.status is None
    assert e.e2e_ns == sum(s.ns for s in e.segments) == r.w8 - r.w1
    assert _ns(e, "forward") == 29 * MS
    assert "gateway gw-1 is missing" in e.notes[0]


def test_without_the_gateways_line_the_hand_over_still_counts_when_the_clocks_compare(tmp_path: Path) -> None:
    """The hand-over's stamp travels with the request; on one host it is on the worker's clock too."""
    book = Logbook(tmp_path)
    r = req("req-0001")
    write_worker(book, r)
    book.write("gateway", "gw-1", HELLO, at_ms=-5_000)
    e = _explain(tmp_path)
    assert e.partial
    assert e.e2e_ns == sum(s.ns for s in e.segments) == r.w8 - r.g3
    assert _ns(e, "stream_wait") == r.w0 - r.g3
    assert any(p.doing is Doing.GC for p in e.waited_behind)


def test_lost_lines_of_the_processes_involved_are_told(tmp_path: Path) -> None:
    """An account from an incomplete log says so."""
    book = Logbook(tmp_path)
    write_gateway(book, req("req-0001"))
    write_worker(book, req("req-0001"))
    book.lose("w-1", 12)
    book.write("worker", "w-1", batch("b-3", start_ms=200, end_ms=210, members=["x"]), at_ms=211)
    e = _explain(tmp_path)
    assert e.notes == ("12 log lines of worker-w-1 were lost",)
    assert not e.complete


def test_a_request_that_failed_before_the_queue_has_a_short_account(tmp_path: Path) -> None:
    """A refused request has no worker, and nothing is missing from its story."""
    refused = Req("req-0001", "f" * 32, "a" * 16, "/x", 429, ns(0), ns(2), g1=ns(1), g7=ns(2), error_code="queue_full")
    write_gateway(Logbook(tmp_path), refused)
    e = _explain(tmp_path)
    assert [(s.name, s.ns) for s in e.segments] == [("recv", MS), ("render", MS)]
    assert (e.hop, e.batch, e.waited_behind) == (None, None, ())
    assert e.complete


def test_an_attempt_without_a_line_is_listed_as_unknown(tmp_path: Path) -> None:
    """A worker that died with the request cannot log it; the number of the attempt tells that it was there."""
    book = Logbook(tmp_path)
    r = req("req-0001", attempt=2, lost_us=50_000)
    write_gateway(book, r)
    write_worker(book, r)
    e = _explain(tmp_path)
    assert [(a.attempt, a.worker, a.outcome) for a in e.attempt_list] == [(1, "", "unknown"), (2, "w-1", "done")]
    assert _ns(e, "lost_attempt") == 50 * MS
    assert sum(s.ns for s in e.segments) == e.e2e_ns
    assert e.notes == (
        "attempt 1 left no line: its worker died with it, or its log is missing",
        "stream_wait was for the worker of attempt 1; shown is what worker w-1 did meanwhile",
    )


def _shifted(r: Req, by_ns: int) -> dict[str, int]:
    return {f"w{i}": getattr(r, f"w{i}") + by_ns for i in range(9)}


def test_measured_bounds_nearest_in_time_split_the_way_between_hosts(tmp_path: Path) -> None:
    """The gateway logs the offset of each worker's clock; the record nearest to the request is used."""
    book = Logbook(tmp_path)
    theta = 77_000 * MS
    r = req("req-0001", worker_clock="clock-b", **_shifted(req("x"), theta))
    far = PeerOffset("w-1", "clock-b", theta + 50 * MS, theta + 60 * MS, 9)
    near = PeerOffset("w-1", "clock-b", theta - 20_000, theta + 20_000, 9)
    other = PeerOffset("w-2", "clock-b", 0, 0, 9)
    for at_ms, peer in ((-9_000, far), (50, near), (60, other)):
        clk = Clk(ns(at_ms), 0, ns(at_ms), [peer])
        book.write("gateway", "gw-1", clk, at_ms=at_ms)
    write_gateway(book, r)
    e = _explain(tmp_path)
    assert sum(s.ns for s in e.segments) == e.e2e_ns == 100_000_123
    assert e.hop is not None
    assert (e.hop.offset.lo_ns, e.hop.offset.hi_ns) == (near.lo, near.hi)
    (downlink,) = [s for s in e.segments if s.name == "downlink"]
    assert abs(downlink.ns - (r.g5 - (r.w8 - theta))) <= downlink.uncertainty_ns == 20_000


def test_causality_bounds_the_offset_when_nothing_was_measured(tmp_path: Path) -> None:
    """Of many requests the fastest ways tell most, +-0.1 ms here; how the clocks drift meanwhile is not known."""
    book = Logbook(tmp_path)
    theta = -3_000 * MS
    quick = {"g3": ns(61.9), "g4": ns(61.9), "g5": ns(97.2), "w0": ns(61.5) + theta}
    slow = req("req-0001", worker_clock="clock-b", **_shifted(req("x"), theta))
    fast = req("req-0002", worker_clock="clock-b", **(_shifted(req("x"), theta) | quick))
    far = req(
        "req-0003", begun_ms=60_000, worker_clock="clock-b", **_shifted(req("x", begun_ms=60_000), theta + 9 * MS)
    )
    write_gateway(book, slow, fast, far)
    e = _explain(tmp_path)
    assert e.hop is not None
    assert theta - MS // 5 < e.hop.offset.lo_ns <= theta - MS // 10
    assert theta + MS // 10 <= e.hop.offset.hi_ns < theta + MS // 5
    assert "no measured clock offset" in e.notes[1]
    assert e.classes[Class.QUEUE] == pytest.approx(64 * MS, abs=MS)


def test_the_json_has_the_promised_shape(whole: Path) -> None:
    """Scripts rely on these names."""
    told = to_json(_explain(whole))
    assert told.keys() >= {"id", "label", "client_id", "trace_id", "status", "error", "model", "version", "attempts"}
    assert told["segments"][0] == {"name": "recv", "class": "transfer", "ns": 300_000, "uncertainty_ns": 0}
    assert set(told["classes"]) == {"queue", "compute", "transfer", "overhead"}
    assert sum(told["classes"].values()) == told["e2e_ns"]
    assert told["hop"]["bounds"] == {"theta_lo_ns": 0, "theta_hi_ns": 0, "source": "same clock"}
    assert told["batch"]["device"]["compute_ns"] == 28 * MS
    assert told["attempt_list"][0]["outcome"] == "done"
    assert told["waited_behind"][1]["label"] == "gc"
    assert told["waited_behind"][1]["attrs"] == {"generation": 2}
    assert (told["worker"], told["gateway"], told["complete"], told["notes"]) == ("w-1", "gw-1", True, [])


@pytest.mark.parametrize("query", ["req-0001", "part-0001", "part-0002", "f" * 32])
def test_a_request_in_parts_is_explained_by_the_part_answered_last(tmp_path: Path, query: str) -> None:
    """Whichever part is asked for, the whole is shown once; the parts have the request's trace and span."""
    book = Logbook(tmp_path)
    r = req("req-0001", parts=2, part="part-0002")
    write_gateway(book, r)
    write_worker(book, req("part-0001"), req("part-0002"))
    e = _explain(tmp_path, query)
    assert (e.id, e.partial, e.complete) == ("req-0001", False, True)
    assert e.batch is not None
    assert e.batch.mates == ("part-0001", "mate-0001")
    assert [a.outcome for a in e.attempt_list] == ["done"]
    assert e.notes == ("the request went out in 2 parts; shown is the one answered last, part-0002",)


def test_a_second_line_about_a_retry_adds_an_attempt(tmp_path: Path) -> None:
    """Workers that live to tell are named with the outcome of their attempt."""
    book = Logbook(tmp_path)
    r = req("req-0001", attempt=2)
    write_gateway(book, r)
    book.write("worker", "w-0", wreq(r, attempt=1, outcome="handed_back"), at_ms=20)
    write_worker(book, r)
    e = _explain(tmp_path)
    assert [(a.worker, a.outcome) for a in e.attempt_list] == [("w-0", "handed_back"), ("w-1", "done")]
