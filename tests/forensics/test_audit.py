"""The audit: what the logs prove of the promise that every request ends, and ends once."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from forensics_logbook import HELLO, MS, T0_WALL_US, Logbook, ns, req, wreq

from forensics.audit import AuditReport, Breach, Untold, audit
from forensics.commands import Patience, audit_command
from shared.events import Bye, Event, Evt, Req, Wreq

LATER_MS = 3_600_000.0
"""An hour later: who has said nothing since is not running."""


class Fleet:
    """Gateways and workers that write logs, and what an audit makes of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._book = Logbook(folder)
        self._started: set[str] = set()

    def gateway(self, *records: Event, inst: str = "gw-1", clock: str = "clock-a") -> None:
        """The gateway writes these, in good time."""
        self._say("gateway", inst, clock, *records)

    def worker(self, *records: Event, inst: str = "w-1", clock: str = "clock-a") -> None:
        """The worker writes these, in good time."""
        self._say("worker", inst, clock, *records)

    def leave(self, *insts: str) -> None:
        """Gateways stop in good order."""
        for inst in insts:
            self._say("gateway", inst, "clock-a", Bye("stopped"))

    def lose(self, inst: str) -> None:
        """A line of this process never reaches its file."""
        self._book.lose(inst, 1)

    def _say(self, proc: str, inst: str, clock: str, *records: Event) -> None:
        if inst not in self._started:
            self._started.add(inst)
            self._book.lose(inst, 1)  # the numbers of a process begin with 1
            self._book.write(proc, inst, HELLO, at_ms=-5_000, clock=clock)
        for record in records:
            self._book.write(proc, inst, record, at_ms=100, clock=clock)

    def audit(self, *, now_ms: float = LATER_MS) -> AuditReport:
        """What can be told at that time."""
        return audit([self.folder], now_us=T0_WALL_US + round(now_ms * 1_000))


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """Nobody has started yet."""
    return Fleet(tmp_path / "logs")


def tried(r: Req, *, attempt: int = 1, at_ms: float = 60, outcome: str = "DONE", **fields: Any) -> Wreq:
    """An attempt that a worker took on at `at_ms` and began to compute 2 ms later."""
    return wreq(r, attempt=attempt, outcome=outcome, w1=ns(at_ms), w4=ns(at_ms + 2), **fields)


def outage(begun_ms: float, ended_ms: float) -> Evt:
    """Somebody could not reach Redis for so long."""
    return Evt("reconnect", ns(begun_ms), ns(ended_ms))


def reclaim(**done: Any) -> Evt:
    """What a tick did."""
    return Evt("reclaim", ns(1), ns(2), {"queue": "minilm/1"} | done)


def kinds(report: AuditReport) -> list[tuple[str, str]]:
    """What breaks the promise, by request."""
    return [(f.id, f.kind.value) for f in report.breaches]


# -- the promise holds -------------------------------------------------------------------------------------------------


def test_requests_that_ended_once_hold_the_promise(fleet: Fleet) -> None:
    """Answered, refused, failed, left by the client: each of these is an end."""
    ends = {"ok": 200, "full": 429, "late": 504, "gone": 499}
    reqs = [req(name, status=status) for name, status in ends.items()]
    fleet.gateway(*reqs)
    fleet.worker(tried(reqs[0]))
    fleet.leave("gw-1")
    found = fleet.audit()
    assert found.ok
    assert found.requests == 4
    assert found.statuses == {"answered": 1, "refused": 1, "failed": 1, "left": 1}
    assert (found.attempts, found.retried, found.for_nobody, found.untold) == (1, 0, 0, [])


def test_a_request_whose_worker_died_is_answered_by_a_later_attempt(fleet: Fleet) -> None:
    """A late answer of the first worker was refused (STALE): one end, one answer, two attempts."""
    r = req("r-1", attempt=2)
    fleet.gateway(r)
    fleet.worker(tried(r, outcome="STALE"), inst="w-1")
    fleet.worker(tried(r, attempt=2, at_ms=70), inst="w-2")
    fleet.leave("gw-1")
    found = fleet.audit()
    assert found.ok
    assert (found.requests, found.attempts, found.retried) == (1, 2, 1)


def test_a_frozen_worker_may_find_its_delivery_after_the_next_attempt(fleet: Fleet) -> None:
    """Its request was handed on while it stood still; what it then made of it went nowhere."""
    r = req("r-1", submits=1)
    fleet.gateway(r)
    fleet.worker(tried(r, attempt=2), inst="w-2")
    fleet.worker(tried(r, at_ms=70, outcome="STALE"), inst="w-1")
    fleet.leave("gw-1")
    found = fleet.audit()
    assert found.ok
    assert found.attempts == 2


def test_a_repeated_answer_is_the_same_answer(fleet: Fleet) -> None:
    """The reply to the first was lost on its way (OKDUP): taken once."""
    r = req("r-1")
    fleet.gateway(r)
    fleet.worker(tried(r, outcome="OKDUP"))
    fleet.leave("gw-1")
    assert fleet.audit().ok


def test_parts_end_with_the_whole(fleet: Fleet) -> None:
    """Embeddings of many texts are several requests in the queue, and one record of the end."""
    whole = req("r-1", parts=3, part="r-1-2")
    fleet.gateway(whole)
    fleet.worker(*(tried(req(name)) for name in ("r-1", "r-1-1", "r-1-2")))
    fleet.leave("gw-1")
    found = fleet.audit()
    assert found.ok
    assert (found.requests, found.attempts) == (1, 3)


def test_a_part_that_the_whole_does_not_have_is_lost(fleet: Fleet) -> None:
    """The names of parts are checked against their number."""
    fleet.gateway(req("r-1", parts=2))
    fleet.worker(tried(req("r-1-2")))
    fleet.leave("gw-1")
    assert kinds(fleet.audit()) == [("r-1-2", "lost")]


def test_what_is_computed_for_nobody_is_counted_and_no_breach(fleet: Fleet) -> None:
    """The client left while its request waited in a worker: a pass that began after that was in vain."""
    left = req("r-1", status=499, g5=ns(50))
    other_host = req("r-2", status=499, g5=ns(50))
    refused_unread = req("r-3", status=400, g5=ns(50))
    fleet.gateway(left, other_host, refused_unread)
    fleet.worker(tried(left, at_ms=49, outcome="STALE"), tried(refused_unread, outcome="STALE", batch_id=""))
    fleet.worker(tried(other_host, outcome="STALE"), inst="w-2", clock="clock-b")
    fleet.leave("gw-1")
    found = fleet.audit()
    assert found.ok
    assert found.for_nobody == 1


# -- the promise is broken ---------------------------------------------------------------------------------------------


def test_a_request_without_an_end_is_lost(fleet: Fleet) -> None:
    """A worker had it, its gateway said goodbye, and no line is missing: its client got no answer."""
    fleet.gateway(req("r-1"))
    fleet.worker(tried(req("r-1")), tried(req("r-2")))
    fleet.leave("gw-1")
    found = fleet.audit()
    assert kinds(found) == [("r-2", "lost")]
    assert found.breaches[0].detail == "handed over by gw-1; attempt 1 on w-1: DONE"
    assert found.requests == 2


def test_two_ends_of_one_request_break_the_promise(fleet: Fleet) -> None:
    """In one gateway, or in two."""
    fleet.gateway(req("r-1"), req("r-1"))
    fleet.gateway(req("r-2"))
    fleet.gateway(req("r-2"), inst="gw-2")
    fleet.leave("gw-1", "gw-2")
    assert kinds(fleet.audit()) == [("r-1", "ended_twice"), ("r-2", "ended_twice")]


def test_two_answers_taken_of_two_workers_break_the_promise(fleet: Fleet) -> None:
    """The fence of the queue let the zombie's answer through."""
    r = req("r-1", submits=1)
    fleet.gateway(r)
    fleet.worker(tried(r), inst="w-1")
    fleet.worker(tried(r, attempt=2, at_ms=70), inst="w-2")
    fleet.leave("gw-1")
    (breach,) = fleet.audit().breaches
    assert (breach.kind, breach.detail) == (Breach.DONE_TWICE, "by w-1 and by w-2")


def test_attempts_that_do_not_increase_break_the_promise(fleet: Fleet) -> None:
    """Two workers with the same attempt: neither can be fenced off."""
    r = req("r-1", submits=1)
    fleet.gateway(r)
    fleet.worker(tried(r, outcome="STALE"), inst="w-1")
    fleet.worker(tried(r, at_ms=70), inst="w-2")
    fleet.leave("gw-1")
    (breach,) = fleet.audit().breaches
    assert (breach.kind, breach.detail) == (Breach.ATTEMPTS, "attempt 1 on w-2 after attempt 1 on w-1")


def test_clocks_of_two_hosts_do_not_put_attempts_in_order(fleet: Fleet) -> None:
    """A host whose clock is ahead is no breach; the same attempt twice is one on any clocks."""
    late, twice = req("r-1", submits=1), req("r-2", submits=1)
    fleet.gateway(late, twice)
    fleet.worker(tried(late, outcome="STALE", at_ms=70), tried(twice, outcome="STALE"), inst="w-1")
    fleet.worker(tried(late, attempt=2, at_ms=60), tried(twice, at_ms=70), inst="w-2", clock="clock-b")
    fleet.leave("gw-1")
    assert kinds(fleet.audit()) == [("r-2", "attempts")]


# -- Redis forgot ------------------------------------------------------------------------------------------------------


def test_a_request_handed_over_again_may_be_computed_again(fleet: Fleet) -> None:
    """Redis was wiped between the answer and its receipt: the gateway still had the request, and its client one end."""
    r = req("r-1", submits=2)
    fleet.gateway(r)
    fleet.worker(tried(r), inst="w-1")
    fleet.worker(tried(r, at_ms=70), inst="w-2")
    fleet.leave("gw-1")
    found = fleet.audit()
    assert found.ok
    assert found.computed_again == 1


def test_an_answer_that_a_killed_redis_had_not_yet_written_is_taken_again(fleet: Fleet) -> None:
    """With a busy disk the append-only file lags behind: the record comes back as if nobody had answered it."""
    r = req("r-1", submits=1)
    fleet.gateway(r)
    fleet.worker(tried(r), outage(65, 66), inst="w-1")
    fleet.worker(tried(r, attempt=2, at_ms=70), inst="w-2")
    fleet.leave("gw-1")
    found = fleet.audit()
    assert found.ok
    assert found.computed_again == 1


def test_each_life_of_a_record_has_to_be_handed_over(fleet: Fleet) -> None:
    """Two hand-overs do not explain three records."""
    r = req("r-1", submits=2)
    fleet.gateway(r)
    fleet.worker(tried(r, at_ms=50), tried(r, at_ms=60), tried(r, at_ms=70))
    fleet.leave("gw-1")
    assert kinds(fleet.audit()) == [("r-1", "attempts"), ("r-1", "done_twice")]


def test_a_failover_may_bring_a_request_back(fleet: Fleet) -> None:
    """The replica did not know the answer yet: computed again, handed over once, with an outage between the two."""
    back, other = req("r-1", submits=1), req("r-2", submits=1)
    fleet.gateway(back, other, outage(64, 66))
    fleet.worker(tried(back, at_ms=60), tried(back, at_ms=70), tried(other, at_ms=70), tried(other, at_ms=75))
    fleet.leave("gw-1")
    found = fleet.audit()
    assert kinds(found) == [("r-2", "attempts"), ("r-2", "done_twice")]
    assert found.computed_again == 1


# -- what cannot be told -----------------------------------------------------------------------------------------------


def test_the_worker_tells_the_end_for_a_gateway_that_died(fleet: Fleet) -> None:
    """Redis took the answer: that is an end, though nobody was left to receive it."""
    fleet.gateway(req("r-1"))
    fleet.worker(tried(req("r-2")), tried(req("r-3"), outcome="FAILED"))
    found = fleet.audit()
    assert found.ok
    assert found.statuses == {"answered": 1, "by_worker": 2}
    assert [p.died for p in found.processes] == [True, True]


@pytest.mark.parametrize("outcome", ["STALE", "GONE", "UNKNOWN"])
def test_what_nobody_was_left_to_log_cannot_be_told(fleet: Fleet, outcome: str) -> None:
    """The gateway died, and the worker's answer was not taken: a tick may have ended the request, or not."""
    fleet.gateway(req("r-1"))
    fleet.worker(tried(req("r-2"), outcome=outcome))
    found = fleet.audit()
    assert found.ok
    assert [(f.id, f.kind) for f in found.untold] == [("r-2", Untold.GATEWAY_DIED)]


def test_a_line_that_was_lost_may_have_been_the_end(fleet: Fleet) -> None:
    """A gap in the gateway's numbers: nothing is proved, and the gap is told."""
    fleet.gateway(req("r-1"))
    fleet.lose("gw-1")
    fleet.worker(tried(req("r-2"), outcome="STALE"))
    fleet.gateway(Evt("log_drop", ns(90), ns(90), {"lines": 1}))
    fleet.leave("gw-1")
    found = fleet.audit()
    assert found.ok
    assert [(f.id, f.kind) for f in found.untold] == [("r-2", Untold.LINES_LOST)]
    (gateway, _) = found.processes
    assert (gateway.reason, gateway.lost, gateway.dropped) == ("stopped", 1, 1)


def test_without_the_gateways_log_nothing_is_proved(fleet: Fleet) -> None:
    """It lies on another machine."""
    fleet.worker(tried(req("r-1"), outcome="STALE"), tried(req("r-2")))
    found = fleet.audit()
    assert [(f.id, f.kind) for f in found.untold] == [("r-1", Untold.NO_LOG)]
    assert found.statuses == {"by_worker": 1}


def test_a_running_gateway_may_still_end_its_requests(fleet: Fleet) -> None:
    """Who wrote a moment ago is running: what it has not ended is in flight."""
    fleet.gateway(req("r-1"))
    fleet.worker(tried(req("r-2")))
    found = fleet.audit(now_ms=2_000)
    assert found.ok
    assert (found.in_flight, found.requests) == (1, 2)
    assert not any(p.died for p in found.processes)


def test_lines_rotated_away_are_told(fleet: Fleet) -> None:
    """The oldest files of a process are deleted in time, and with them the ends that they told."""
    fleet.lose("gw-1")
    fleet.lose("gw-1")
    fleet.gateway(req("r-1"))
    fleet.worker(tried(req("r-2"), outcome="STALE"))
    fleet.leave("gw-1")
    found = fleet.audit()
    assert found.processes[0].cut == 2
    assert [f.kind for f in found.untold] == [Untold.LINES_LOST]


def test_what_the_ticks_did_is_counted(fleet: Fleet) -> None:
    """Whoever led; older logs have numbers instead of ids."""
    fleet.gateway(reclaim(requeued=["r-1", "r-2"], dead=["r-3"]), *(req(f"r-{i}") for i in range(1, 5)))
    fleet.worker(reclaim(requeued=1, dead=0, overdue=5), reclaim(suspects=["r-4"]))
    fleet.leave("gw-1")
    found = fleet.audit()
    assert found.ok
    assert found.reclaimed == {"requeued": 3, "suspects": 1, "due": 0, "dead": 1, "overdue": 5}


def test_a_tick_tells_the_end_for_a_gateway_that_died(fleet: Fleet) -> None:
    """It ended the request for good; one that it queued again may still have ended, or not."""
    fleet.gateway(req("r-1"))
    fleet.worker(reclaim(overdue=["r-2"], dead=["r-3"], requeued=["r-4"]), tried(req("r-2"), outcome="STALE"))
    found = fleet.audit()
    assert found.ok
    assert found.statuses == {"answered": 1, "by_tick": 2}
    assert [(f.id, f.kind, f.detail) for f in found.untold] == [("r-4", Untold.GATEWAY_DIED, "a tick: requeued")]


def test_a_request_that_only_a_tick_tells_of_may_be_a_running_gateways(fleet: Fleet) -> None:
    """Ticks do not say whose it was."""
    fleet.gateway(req("r-1"))
    fleet.worker(reclaim(requeued=["r-2"]))
    assert fleet.audit(now_ms=2_000).in_flight == 1
    fleet.leave("gw-1")
    assert [f.kind for f in fleet.audit().untold] == [Untold.NO_LOG]


# -- the command -------------------------------------------------------------------------------------------------------


def run(*args: str | Path, env: dict[str, str] | None = None) -> Result:
    """`tailrace audit`, an hour later."""
    patience = Patience(now_us=lambda: T0_WALL_US + round(LATER_MS * 1_000))
    return CliRunner().invoke(audit_command, [str(a) for a in args], obj=patience, env=env)


def test_the_command_exits_with_0_when_the_promise_holds(fleet: Fleet) -> None:
    """The last line is the verdict."""
    r = req("r-1")
    fleet.gateway(r)
    fleet.worker(tried(r))
    fleet.leave("gw-1")
    result = run(fleet.folder)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == "OK: each of 1 request ended once"
    assert "worker-w-1: ended without a goodbye" in result.output
    assert "\x1b" not in result.output


def test_the_command_exits_with_1_and_names_what_broke_it(fleet: Fleet) -> None:
    """What comes from the logs is shown as it is, control characters escaped."""
    fleet.gateway(req("r-1"), req("r-1"))
    fleet.worker(tried(req("\x1b[31mr-2")))
    fleet.leave("gw-1")
    result = run(fleet.folder)
    assert result.exit_code == 1
    assert "1 request: more than one end\n  r-1  2 records of its end" in result.output
    assert (
        "1 request: no end, though their gateway's log is whole\n  \\x1b[31mr-2  handed over by gw-1" in result.output
    )
    assert result.output.splitlines()[-1] == "BROKEN: 2 breaches of the promise"


def test_many_findings_are_cut_for_people_and_not_for_machines(fleet: Fleet) -> None:
    """A page is enough to see what is wrong."""
    fleet.gateway(HELLO)
    fleet.worker(*(tried(req(f"r-{i:03}")) for i in range(30)))
    fleet.leave("gw-1")
    assert "10 more; --json has them all" in run(fleet.folder).output
    told = json.loads(run(fleet.folder, "--json").output)
    assert [breach["id"] for breach in told["breaches"]] == [f"r-{i:03}" for i in range(30)]


def test_json_is_one_object(fleet: Fleet) -> None:
    """With the same verdict as the exit status."""
    r = req("r-1")
    fleet.gateway(r)
    fleet.worker(tried(r))
    fleet.leave("gw-1")
    result = run(fleet.folder, "--json")
    assert result.exit_code == 0
    (line,) = result.output.splitlines()
    told = json.loads(line)
    assert told["ok"] is True
    assert (told["requests"], told["ends"], told["attempts"]) == (1, {"answered": 1}, 1)
    assert [(p["name"], p["died"]) for p in told["processes"]] == [("gateway-gw-1", False), ("worker-w-1", True)]
    assert told["last_us"] == T0_WALL_US + 100 * MS // 1_000


def test_several_folders_and_files_are_one_audit(tmp_path: Path) -> None:
    """The logs of several machines need not be copied together."""
    here, there = Fleet(tmp_path / "a"), Fleet(tmp_path / "b")
    r = req("r-1")
    here.gateway(r)
    here.leave("gw-1")
    there.worker(tried(r))
    result = run(here.folder, there.folder / "worker-w-1.jsonl", "--json")
    assert json.loads(result.output)["attempts"] == 1
    by_environment = run("--json", env={"TAILRACE_LOG_DIR": str(here.folder)})
    assert json.loads(by_environment.output)["requests"] == 1


def test_without_logs_the_command_exits_with_2(tmp_path: Path) -> None:
    """No folder, an empty one, a file of something else: nothing was audited, so nothing holds."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.jsonl").write_text("something else\n")
    for what, text in (("nowhere", "there is no"), ("empty", "no log"), ("other.jsonl", "is a record")):
        result = run(tmp_path / what)
        assert result.exit_code == 2, result.output
        assert text in result.output


def test_the_help_says_what_the_exit_status_means() -> None:
    """Scripts depend on it."""
    result = run("--help")
    assert "Example:\n    tailrace audit" in result.output
    assert "Exits with 0" in result.output
    assert "TAILRACE_LOG_DIR" in result.output
