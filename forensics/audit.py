"""The promise, checked from the event logs alone: every request that was taken on has ended, and has ended once.

Theory of operation. One pass over the lines keeps a few numbers for each request; judging happens at the end, since
neither files nor lines are in the order of time. The end of a request is its gateway's `req`. Where the gateway died
before it could write one, an answer that Redis took from a worker (`wreq` DONE, FAILED, OKDUP), or a tick that ended
it (`reclaim`: overdue, dead), is its end; without these the end of such a request cannot be told, and it is listed as
that, not as a breach. A breach is only what whole logs contradict: the gateway that handed the request over said
goodbye, and none of its lines is missing.

Within the life of its record in Redis the attempts of a request rise, and one answer is taken: a second one means that
the fence of the queue failed. A record may live twice only when Redis lost the first (a wipe, a failover), and come
back to life only when Redis lost its end (a kill before that was in the file): then the gateway has handed the request
over again (`submits`), or somebody had to reconnect meanwhile. The request is then computed again, which is counted,
and still ends once at its gateway.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from forensics.load import LoadReport, LogLine, Tally, read_logs
from shared.events import Bye, Envelope, Event, Evt, Req, Wreq

ALIVE_US = 5_000_000
"""A process writes a `res` every second: one that was silent for longer is dead, or said goodbye."""
TAKEN = frozenset({"DONE", "FAILED", "OKDUP"})
"""Outcomes of an attempt whose answer Redis took."""
FENCED = frozenset({"STALE", "GONE", "UNKNOWN"})
"""Outcomes of an attempt whose answer went nowhere."""
RECLAIMED = ("requeued", "suspects", "due", "dead", "overdue")
"""What a tick does with requests; the last two are ends."""


class Breach(StrEnum):
    """What breaks the promise."""

    LOST = "lost"
    """No end, though the log of its gateway is whole."""
    ENDED_TWICE = "ended_twice"
    """More than one terminal record."""
    DONE_TWICE = "done_twice"
    """Redis took two answers to one record."""
    ATTEMPTS = "attempts"
    """Attempts that do not increase."""


class Untold(StrEnum):
    """Why the end of a request cannot be told."""

    GATEWAY_DIED = "gateway_died"
    LINES_LOST = "lines_lost"
    NO_LOG = "no_log"


class Finding(NamedTuple):
    """One request that breaks the promise, or whose end cannot be told."""

    kind: Breach | Untold
    id: str
    detail: str


class Process(NamedTuple):
    """A process that wrote a log. `reason`: of its goodbye, empty without one."""

    name: str
    reason: str
    running: bool
    lost: int
    dropped: int
    cut: int
    """Lines before the first one that is there: rotated away."""

    @property
    def died(self) -> bool:
        """True when it ended without a goodbye."""
        return not self.reason and not self.running

    @property
    def whole(self) -> bool:
        """True when everything it had to tell is here."""
        return bool(self.reason) and not self.lost and not self.cut


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What the logs prove. `ok`: nothing in them breaks the promise."""

    load: LoadReport
    first_us: int
    last_us: int
    requests: int
    statuses: Counter[str]
    """Ends at the gateway: answered, refused (4xx), failed (5xx), left (by the client); else `by_worker`, `by_tick`."""
    in_flight: int
    attempts: int
    retried: int
    """Requests with an attempt above the first."""
    for_nobody: int
    """Attempts that began to compute after their request had ended."""
    computed_again: int
    """Answers to a record that Redis had lost once."""
    reclaimed: Counter[str]
    """What ticks did, by the names of RECLAIMED."""
    breaches: Sequence[Finding]
    untold: Sequence[Finding]
    processes: Sequence[Process]

    @property
    def ok(self) -> bool:
        """True when the promise holds for every request that can be judged."""
        return not self.breaches


class _Take(NamedTuple):
    """One attempt as its worker told it."""

    taken_us: int
    attempt: int
    outcome: str
    worker: str
    clock: str
    started_ns: int


@dataclass(slots=True)
class _Fate:
    """What is known of one id. `ended_ns` is on `clock`; `gateway` as the attempts name it."""

    ends: int = 0
    status: int = 0
    ended_ns: int = 0
    clock: str = ""
    parts: int = 0
    submits: int = 0
    gateway: str = ""
    by_tick: str = ""
    """What a tick did to it last."""
    takes: tuple[_Take, ...] = ()


@dataclass(slots=True)
class _Writer:
    last_us: int = 0
    first_seq: int = sys.maxsize
    reason: str = ""
    dropped: int = 0


@dataclass(slots=True)
class Audit:
    """Give it every line with `saw`; then `judge`."""

    _fates: dict[str, _Fate] = field(default_factory=dict)
    _writers: dict[str, _Writer] = field(default_factory=dict)
    _outages: list[tuple[int, int]] = field(default_factory=list)
    """When Redis was away or came back, as somebody saw it: wall clock, in us."""
    _reclaimed: Counter[str] = field(default_factory=Counter)
    _first_us: int = sys.maxsize

    def saw(self, line: LogLine[Event]) -> None:
        """Take note of one line."""
        e, record = line
        name = line.writer
        writer = self._writers.get(name)
        if writer is None:
            writer = self._writers[name] = _Writer()
        if e.wall_us > writer.last_us:
            writer.last_us = e.wall_us
        if e.seq < writer.first_seq:
            writer.first_seq = e.seq
        if e.wall_us < self._first_us:
            self._first_us = e.wall_us
        if isinstance(record, Req):
            self._saw_end(e, record)
        elif isinstance(record, Wreq):
            self._saw_attempt(e, record)
        elif isinstance(record, Evt):
            self._saw_event(e, writer, record)
        elif isinstance(record, Bye):
            writer.reason = record.reason or "stopped"

    def _fate(self, request_id: str) -> _Fate:
        fate = self._fates.get(request_id)
        if fate is None:
            fate = self._fates[request_id] = _Fate()
        return fate

    def _saw_end(self, e: Envelope, r: Req) -> None:
        fate = self._fate(r.id)
        fate.ends += 1
        fate.status = r.status
        fate.ended_ns, fate.clock = r.g5 or r.g8, sys.intern(e.clock)
        fate.parts, fate.submits = r.parts, r.submits

    def _saw_attempt(self, e: Envelope, w: Wreq) -> None:
        fate = self._fate(w.id)
        fate.gateway = sys.intern(w.gateway)
        # What was refused before it came to a batch has stamps all alike, and started nothing.
        started_ns = w.w4 if w.batch_id else 0
        take = _Take(
            _wall_us(e, w.w1), w.attempt, sys.intern(w.outcome), sys.intern(e.inst), sys.intern(e.clock), started_ns
        )
        fate.takes = (*fate.takes, take)

    def _saw_event(self, e: Envelope, writer: _Writer, event: Evt) -> None:
        if event.kind in ("reconnect", "redis_restart"):
            self._outages.append((_wall_us(e, event.start), _wall_us(e, event.end)))
        elif event.kind == "reclaim":
            for what in RECLAIMED:
                ids = event.attrs.get(what, ())
                if isinstance(ids, int):  # logs of before the ids were told
                    self._reclaimed[what] += ids
                    continue
                self._reclaimed[what] += len(ids)
                for request_id in ids:
                    self._fate(str(request_id)).by_tick = what
        elif event.kind == "log_drop":
            writer.dropped += int(event.attrs.get("lines", 0))

    # -- judging ---------------------------------------------------------------------------------------------------

    def judge(self, load: LoadReport, *, now_us: int) -> AuditReport:
        """What the lines seen so far prove. `now_us`: who wrote until now still runs."""
        last_us = max((w.last_us for w in self._writers.values()), default=0)
        now_us = max(now_us, last_us)
        processes = {
            name: Process(
                name, w.reason, not w.reason and now_us - w.last_us <= ALIVE_US, load.lost.get(name, 0), w.dropped,
                max(0, w.first_seq - 1),
            )
            for name, w in sorted(self._writers.items())
        }  # fmt: skip
        breaches: list[Finding] = []
        untold: list[Finding] = []
        statuses: Counter[str] = Counter()
        tally: Counter[str] = Counter()
        for request_id, fate in self._fates.items():
            whole = fate if fate.ends else self._whole_of(request_id)
            if fate.ends:
                statuses[_kind_of_end(fate.status)] += 1
            if fate.ends > 1:
                breaches.append(Finding(Breach.ENDED_TWICE, request_id, f"{fate.ends} records of its end"))
            breaches += self._judge_attempts(request_id, fate, whole, tally)
            if whole is None:
                match _end_without_record(fate, processes):
                    case "by_worker" | "by_tick" | "in_flight" as how:
                        tally[how] += 1
                    case Breach() | Untold() as kind:
                        (breaches if isinstance(kind, Breach) else untold).append(
                            Finding(kind, request_id, _last_words(fate))
                        )
        statuses += Counter({how: tally[how] for how in ("by_worker", "by_tick")})
        return AuditReport(
            load=load,
            first_us=self._first_us if last_us else 0,
            last_us=last_us,
            requests=statuses.total() + tally["in_flight"] + len(untold) + sum(b.kind is Breach.LOST for b in breaches),
            statuses=statuses,
            in_flight=tally["in_flight"],
            attempts=tally["attempts"],
            retried=tally["retried"],
            for_nobody=tally["for_nobody"],
            computed_again=tally["computed_again"],
            reclaimed=self._reclaimed,
            breaches=sorted(breaches),
            untold=sorted(untold),
            processes=list(processes.values()),
        )

    def _whole_of(self, part_id: str) -> _Fate | None:
        """The request that an id without an end of its own is a part of."""
        request_id, _, number = part_id.rpartition("-")
        fate = self._fates.get(request_id)
        if fate is None or not fate.ends or not number.isdigit() or int(number) >= fate.parts:
            return None
        return fate

    def _judge_attempts(
        self, request_id: str, fate: _Fate, whole: _Fate | None, tally: Counter[str]
    ) -> Iterable[Finding]:
        takes = fate.takes
        if len(takes) > 1:
            takes = tuple(sorted(takes))
        tally["attempts"] += len(takes)
        tally["retried"] += any(take.attempt > 1 for take in takes)
        highest, lives, answered_before = 0, 1, False
        before: _Take | None = None
        answered: _Take | None = None
        for take in takes:
            # Of a job the client heard only that it was taken on.
            if whole and whole.status != 202 and take.started_ns > whole.ended_ns and take.clock == whole.clock:
                tally["for_nobody"] += 1
            if take.attempt < highest and take.outcome in FENCED:
                continue  # a worker that was frozen found its delivery only now; the fence held
            if before is not None and take.attempt <= highest:
                if whole is None or whole.submits > lives or self._was_away(before.taken_us, take.taken_us):
                    lives, highest, answered_before, answered = lives + 1, 0, answered_before or bool(answered), None
                elif take.attempt == before.attempt or take.clock == before.clock:
                    # Else two hosts' clocks may just disagree on which came first.
                    now, then = (
                        f"attempt {take.attempt} on {take.worker}",
                        f"attempt {before.attempt} on {before.worker}",
                    )
                    yield Finding(Breach.ATTEMPTS, request_id, f"{now} after {then}")
            if take.outcome in TAKEN:
                if answered and not self._was_away(answered.taken_us, take.taken_us):
                    yield Finding(Breach.DONE_TWICE, request_id, f"by {answered.worker} and by {take.worker}")
                elif answered or answered_before:
                    tally["computed_again"] += 1
                answered = take
            highest, before = max(highest, take.attempt), take

    def _was_away(self, from_us: int, to_us: int) -> bool:
        return any(start_us <= to_us and end_us >= from_us for start_us, end_us in self._outages)


def _wall_us(e: Envelope, at_ns: int) -> int:
    """The wall clock at an instant of the writer's own clock."""
    return e.wall_us - (e.mono - at_ns) // 1_000


def _kind_of_end(status: int) -> str:
    if status < 400:
        return "answered"
    if status == 499:
        return "left"
    return "refused" if status < 500 else "failed"


def _end_without_record(fate: _Fate, processes: Mapping[str, Process]) -> "str | Breach | Untold":
    """What became of a request that its gateway's log does not have."""
    gateway = processes.get(f"gateway-{fate.gateway}")
    gateways = [gateway] if gateway else [p for name, p in processes.items() if name.startswith("gateway-")]
    if gateway and gateway.whole:
        return Breach.LOST
    if any(take.outcome in TAKEN for take in fate.takes):
        return "in_flight" if gateway and gateway.running else "by_worker"
    if fate.by_tick in ("dead", "overdue"):
        return "by_tick"
    # Ticks do not tell whose request it was: if one gateway still runs, it may be that one's.
    if any(g.running for g in gateways) and (gateway or not fate.gateway):
        return "in_flight"
    if gateway and not gateway.died:
        return Untold.LINES_LOST
    return Untold.GATEWAY_DIED if any(g.died for g in gateways) and (gateway or not fate.gateway) else Untold.NO_LOG


def _last_words(fate: _Fate) -> str:
    if not fate.takes:
        return f"a tick: {fate.by_tick}"
    take = max(fate.takes)
    return f"handed over by {fate.gateway}; attempt {take.attempt} on {take.worker}: {take.outcome}"


def audit(paths: Iterable[Path], *, now_us: int) -> AuditReport:
    """Read logs (files, or folders of them) and judge them."""
    tally, found = Tally(), Audit()
    for line in read_logs(paths, tally=tally):
        found.saw(line)
    return found.judge(tally.report(), now_us=now_us)
