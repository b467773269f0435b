"""Any order of calls, deaths and zombies keeps to the table of states: a model runs beside the real server."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule, run_state_machine_as_test
from support.audit import leftovers, pending_of, snapshot
from support.scene import Scene
from support.waiting import soon

from shared.broker import housekeeping, requests, scripts, work
from shared.broker.connection import Connection
from shared.broker.embedded import EmbeddedRedis
from shared.broker.work import Answer, Delivery, Entry
from shared.lifecycle import MOVES, State, is_terminal

NAMES = ("w-1", "w-2", "w-3")
WORKERS = st.sampled_from(NAMES)
RETRY, INTERACTIVE = 0, 1
QUICK = (Phase.explicit, Phase.reuse, Phase.generate)
"""Without `Phase.shrink`, which runs the server for minutes: add it by hand when a history fails."""


@dataclass
class Expected:
    """What the model says of a request. `entry` changes when it is handed on; `holder` has it delivered."""

    state: State = State.QUEUED
    attempt: int = 0
    entry: int = 0
    lane: int = INTERACTIVE
    holder: str = ""
    owner: str = ""
    rung: int = 0
    past: list[State] = field(default_factory=lambda: [State.QUEUED])

    @property
    def live(self) -> bool:
        return not is_terminal(self.state)


@dataclass(frozen=True)
class Given:
    """An entry that a blocking read brought to a worker; `number` is the model's name for it."""

    worker: str
    entry: Entry
    number: int


class Lifecycle(RuleBasedStateMachine):
    """Gateways, workers and the leader act in any order. `lanes` holds what is queued and not delivered."""

    requests = Bundle("requests")
    held = Bundle("held")
    given = Bundle("given")

    def __init__(self, runner: asyncio.Runner, c: Connection) -> None:
        super().__init__()
        self.runner = runner
        self.scene = Scene(c)
        self.known: dict[str, Expected] = {}
        self.lanes: tuple[list[str], list[str]] = ([], [])
        self.entries = 0
        self.ids = 0
        self.again: Any = None
        self.do(c.call("FLUSHALL"))
        self.do(self.scene.open())

    def do(self, what: Any) -> Any:
        """Let it happen."""

        async def wait() -> Any:
            return await soon(what)

        return self.runner.run(wait())

    # -- the model's own moves --

    def move(self, rid: str, state: State) -> None:
        e = self.known[rid]
        e.state = state
        e.past.append(state)
        if not e.live:
            for lane in self.lanes:
                if rid in lane:
                    lane.remove(rid)
            e.holder = e.owner = ""

    def start(self, rid: str, worker: str) -> int:
        e = self.known[rid]
        e.holder = e.owner = worker
        e.attempt += 1
        self.move(rid, State.RUNNING)
        return e.attempt

    def hand_on(self, rid: str) -> None:
        e = self.known[rid]
        if e.attempt >= housekeeping.MAX_ATTEMPTS:
            e.rung += 1
            self.move(rid, State.DEAD)
            return
        if e.state is not State.QUEUED:
            self.move(rid, State.QUEUED)
        self.entries += 1
        e.entry, e.lane, e.holder, e.owner = self.entries, RETRY, "", ""
        self.lanes[RETRY].append(rid)

    # -- rules --

    @rule(target=requests, n=st.integers(1, 4))
    def accept(self, n: int) -> Any:
        ids = [f"r-{self.ids + i}" for i in range(n)]
        self.ids += n
        self.again = lambda: self.scene.accept(*ids)
        assert [status for status, _ in self.do(self.again())] == ["OK"] * n
        for rid in ids:
            self.entries += 1
            self.known[rid] = Expected(entry=self.entries)
            self.lanes[INTERACTIVE].append(rid)
        return multiple(*ids)

    @rule(rid=requests)
    def accept_again(self, rid: str) -> None:
        if rid in self.known:
            assert self.do(self.scene.accept(rid)) == [("DUP", self.known[rid].state)]

    def take(self, worker: str, want: int) -> list[tuple[str, int]]:
        """The next requests of the queue, the retry lane first, with the attempts that they begin."""
        taken = (self.lanes[RETRY] + self.lanes[INTERACTIVE])[:want]
        for rid in taken:
            self.lanes[self.known[rid].lane].remove(rid)
        return [(rid, self.start(rid, worker)) for rid in taken]

    @rule(target=held, worker=WORKERS, want=st.integers(1, 5))
    def fetch(self, worker: str, want: int) -> Any:
        expected = self.take(worker, want)
        delivered = self.do(self.scene.fetch(worker, want=want))
        assert [(d.id, d.attempt) for d in delivered] == expected
        self.again = None
        return multiple(*delivered)

    @rule(target=given, worker=WORKERS)
    def block(self, worker: str) -> Any:
        """A blocking read brings at most one entry of each lane, and starts nothing."""
        expected = [lane.pop(0) for lane in self.lanes if lane]
        entries = self.do(self.scene.block(worker)) if expected else []
        assert [e.request_id for e in entries] == expected
        for rid in expected:
            self.known[rid].holder = worker
        self.do(self.scene.beat(worker))  # as the worker does beside its loop
        return multiple(*(Given(worker, e, self.known[e.request_id].entry) for e in entries))

    @rule(target=held, given=given, want=st.integers(1, 3))
    def start_given(self, given: Given, want: int) -> Any:
        """Also long afterwards, when the entry may have been handed on or have ended; and fill up from the queue."""
        rid = given.entry.request_id
        e = self.known.get(rid)
        mine = e is not None and e.live and e.entry == given.number
        expected = [(rid, self.start(rid, given.worker))] if mine else []
        expected += self.take(given.worker, want - len(expected))
        delivered = self.do(self.scene.start([given.entry], given.worker, want=want))
        assert [(d.id, d.attempt) for d in delivered] == expected
        self.again = None
        return multiple(*delivered)

    @rule(target=held, worker=WORKERS)
    def adopt(self, worker: str) -> Any:
        """The worker has lost a reply, and takes all that Redis holds for it."""
        own = self.do(work.own_entries(self.scene.c, self.scene.queue, worker))
        assert sorted(e.request_id for e in own) == sorted(r for r, e in self.known.items() if e.holder == worker)
        attempts = [(e.request_id, self.start(e.request_id, worker)) for e in own]
        delivered = self.do(self.scene.start(own, worker))
        assert [(d.id, d.attempt) for d in delivered] == attempts
        self.again = None
        return multiple(*delivered)

    @rule(held=held, failed=st.booleans())
    def complete(self, held: Delivery, failed: bool) -> None:
        """By whoever ever held it: the owner of now, or a zombie."""
        status = State.FAILED if failed else State.DONE
        e = self.known.get(held.id)
        if e is None:
            expected = "GONE"
        elif not e.live:
            expected = "OKDUP" if (e.attempt, e.state) == (held.attempt, status) else "STALE"
        elif e.attempt != held.attempt:
            expected = "STALE"
        else:
            expected = "OK"
            e.rung += 1
            self.move(held.id, status)
        answers = [Answer(held.id, held.attempt, failed, b"=answer")]
        self.again = lambda: work.complete(self.scene.c, self.scene.queue, answers)
        assert self.do(self.again()) == [expected]

    @rule(rid=requests, expired=st.booleans())
    def cancel(self, rid: str, expired: bool) -> None:
        e = self.known.get(rid)
        expected = e.state if e else "GONE"
        if e and e.live:
            self.move(rid, State.EXPIRED if expired else State.CANCELLED)
        self.again = lambda: requests.cancel(self.scene.c, self.scene.queue, [rid], expired=expired)
        assert self.do(self.again()) == [expected]

    @rule(rid=requests)
    def pass_deadline(self, rid: str) -> None:
        e = self.known.get(rid)
        self.do(self.scene.pass_deadline(rid))
        tick = self.do(self.scene.tick())
        assert tick.overdue == (1 if e and e.live else 0)
        if e and e.live:
            e.rung += 1
            self.move(rid, State.EXPIRED)
        self.again = self.scene.tick

    @rule(worker=WORKERS)
    def die(self, worker: str) -> None:
        """The worker's lease runs out; what it held is handed on, lane by lane, in the order of the entries."""
        self.do(self.scene.die(worker))
        self.bury(worker)

    @rule(worker=WORKERS)
    def leave(self, worker: str) -> None:
        held = any(e.holder == worker for e in self.known.values())
        assert bool(self.do(work.leave(self.scene.c, self.scene.queue, worker))) == held
        if held:
            self.bury(worker)

    def bury(self, worker: str) -> None:
        lost = sorted((e.lane, e.entry, rid) for rid, e in self.known.items() if e.holder == worker)
        for _, _, rid in lost:
            self.hand_on(rid)
        dead = sum(self.known[rid].state is State.DEAD for _, _, rid in lost)
        tick = self.do(self.scene.tick())
        assert (tick.requeued, tick.dead, tick.lost) == (len(lost) - dead, dead, (worker,))
        self.again = self.scene.tick

    @rule(worker=WORKERS, held=st.lists(held, max_size=4))
    def beat(self, worker: str, held: list[Delivery]) -> None:
        ours = [
            d.id in self.known
            and self.known[d.id].state is State.RUNNING
            and (self.known[d.id].attempt, self.known[d.id].owner) == (d.attempt, worker)
            for d in held
        ]
        _, not_ours = self.do(self.scene.beat(worker, *held))
        assert not_ours == [d.id for d, mine in zip(held, ours, strict=True) if not mine]

    @rule(rid=requests)
    def forget(self, rid: str) -> None:
        """Its gateway knows how it ended."""
        if rid in self.known and not self.known[rid].live:
            del self.known[rid]
            self.do(requests.forget(self.scene.c, self.scene.queue, self.scene.gateway, [rid]))
            self.again = None

    @rule(times=st.integers(1, 2))
    def repeat_the_last_call(self, times: int) -> None:
        """Its reply was lost, so it is sent again: the state stays as it is."""
        if self.again is None:
            return
        before = self.do(snapshot(self.scene.c))
        for _ in range(times):
            self.do(self.again())
        assert self.do(snapshot(self.scene.c)) == before

    # -- what always holds --

    async def look(self) -> tuple[list[str], int, list[bytes], list[list[bytes]], list[str]]:
        """All that Redis says, asked for in one go."""
        scene = self.scene
        return await asyncio.gather(
            scene.states(*self.known),
            scene.depth(),
            scene.c.call("ZRANGE", scene.queue.deadlines, 0, -1),
            asyncio.gather(*(pending_of(scene.c, scene.queue, worker) for worker in NAMES)),
            scene.rung(),
        )

    @invariant()
    def redis_says_what_the_model_says(self) -> None:
        states, depth, due, held, rung = self.do(self.look())
        live = [rid for rid, e in self.known.items() if e.live]
        assert states == [e.state for e in self.known.values()]
        assert depth == len(live), "the queue is as long as what is queued and running"
        assert sorted(rid.decode() for rid in due) == sorted(live), "what is alive has a deadline"
        for worker, entries in zip(NAMES, held, strict=True):
            assert len(entries) == sum(e.holder == worker for e in self.known.values()), f"what {worker} was given"
        for rid, e in self.known.items():
            assert rung.count(rid) == e.rung <= 1, "each end rings once"
            assert e.rung or e.state not in (State.DONE, State.FAILED, State.DEAD)

    @invariant()
    def only_legal_moves_were_made(self) -> None:
        for e in self.known.values():
            assert all(after in MOVES[before] for before, after in zip(e.past, e.past[1:], strict=False)), e.past
            assert sum(is_terminal(state) for state in e.past) <= 1

    def teardown(self) -> None:
        assert self.do(leftovers(self.scene.c)) == []


@pytest.fixture
def own_loop(oldest_server: EmbeddedRedis) -> Iterator[tuple[asyncio.Runner, Connection]]:
    """A connection on an event loop that the state machine can step."""
    with asyncio.Runner() as runner:

        async def connect() -> Connection:
            c = Connection(oldest_server.url, "lifecycle", on_connect=scripts.load_all)
            c.start()
            await soon(c.wait_connected())
            return c

        c = runner.run(connect())
        yield runner, c
        runner.run(c.close())


def test_every_history_keeps_to_the_table(own_loop: tuple[asyncio.Runner, Connection]) -> None:
    """Legal moves only, one end each, exact lengths, growing attempts: in every order of events that was tried."""
    limits = settings(max_examples=60, stateful_step_count=40, deadline=None, phases=QUICK)
    run_state_machine_as_test(lambda: Lifecycle(*own_loop), settings=limits)


def test_terminal_states_have_no_way_out() -> None:
    """The table itself: what is written once has no move, everything else can end in every way."""
    assert {s for s in State if is_terminal(s)} == {
        State.DONE,
        State.FAILED,
        State.CANCELLED,
        State.EXPIRED,
        State.DEAD,
    }
    for state in (State.QUEUED, State.RUNNING):
        assert MOVES[state] >= {s for s in State if is_terminal(s)}
