"""Everything that can happen to a queue, in any order, on several servers at once, beside the model.

`step` chooses one act and its arguments; what an act returned on every server is compared with what the model answers,
and afterwards everything Redis holds with everything the model holds.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.audit import disorder, leftovers, snapshot
from support.protocol_model import Letter, Model, Request
from support.protocol_picture import picture
from support.scene import MINUTE_US, Scene
from support.waiting import soon

from shared.broker import letters, requests, work
from shared.broker.connection import Connection
from shared.broker.requests import Job, Limits
from shared.broker.work import Answer, Delivery, Entry
from shared.lifecycle import State

READY_MAX, CRASHES_MAX, LOSSES_MAX, ERRORS_MAX = 3, 2, 3, 2
"""The model's, and the scripts' while it runs: small, so that there is often a backlog, and an end."""
WORKERS = ("w-1", "w-2", "w-3")
GATEWAYS = ("gw-1", "gw-1", "gw-2")
TENANTS = {"A": 1, "B": 1, "C": 2}
AMPLE, TIGHT = Limits(), Limits(12, 130, 4)
JOBS = {
    "request": None,
    "job": Job(ttl_ms=60_000, hook="http://somebody/"),
    "key": Job(ttl_ms=60_000, key="k", digest="d", sync=True),
    "same key": Job(ttl_ms=60_000, key="k", digest="e"),
}
SOON_US, TOO_LATE_US = MINUTE_US // 2, 10 * MINUTE_US

ACTS = {
    "accept": 20,
    "accept_again": 4,
    "cancel": 2,
    "attach": 3,
    "forget": 2,
    "lose_gateway": 1,
    "fetch": 18,
    "fetch_alone": 16,
    "block": 8,
    "start_given": 6,
    "adopt": 4,
    "compute": 8,
    "complete": 12,
    "retry": 18,
    "release": 6,
    "beat": 8,
    "die": 14,
    "leave": 3,
    "pass_deadline": 2,
    "come_due": 10,
    "audit": 2,
    "replay": 8,
    "purge": 1,
    "flush": 1,
    "repeat_the_last_call": 12,
}
"""What may happen, and how often relative to the rest."""

T = TypeVar("T")


@dataclass(frozen=True)
class Held:
    """An attempt that a worker has in its hands, or once had."""

    worker: str
    id: str
    attempt: int

    @property
    def pair(self) -> tuple[str, int]:
        return self.id, self.attempt

    def answer(self, *, failed: bool) -> Answer:
        return Answer(self.id, self.attempt, failed, b"=answer")


@dataclass(frozen=True)
class Given:
    """An entry that a blocking read brought: what the model calls it, and what it is on each server."""

    worker: str
    id: str
    number: int
    lane: int
    entries: tuple[Entry, ...]


class Lifecycle(RuleBasedStateMachine):
    """Gateways, workers, the leader and an operator act in any order, on all servers alike."""

    acts = ACTS

    def __init__(self, runner: asyncio.Runner, connections: dict[str, Connection]) -> None:
        super().__init__()
        self.runner = runner
        self.scenes = {name: Scene(c) for name, c in connections.items()}
        self.model = Model(READY_MAX, CRASHES_MAX, LOSSES_MAX, ERRORS_MAX)
        self.ids: list[str] = []
        self.held: list[Held] = []
        self.given: list[Given] = []
        self.letters: list[Letter] = []
        self.again: Callable[[Scene], Awaitable[Any]] | None = None
        self.steps = 0
        self.rng = random.Random(0)
        self.choices = [name for name, often in self.acts.items() for _ in range(often)]
        self.flush()

    @rule(seed=st.integers(0, 2**32 - 1))
    def step(self, seed: int) -> None:
        """One act. Hypothesis would choose what is first and simplest, and the same again, too often for us."""
        self.steps += 1
        self.rng = random.Random(f"{seed} {self.steps}")
        name = self.rng.choice(self.choices)
        note(name)
        getattr(self, name)()

    def one_of(self, known: Sequence[T]) -> T | None:
        """Mostly a recent one."""
        if not known:
            return None
        return known[-1 - min(self.rng.randrange(len(known)), self.rng.randrange(len(known)))]

    def some_of(self, known: Sequence[T]) -> list[T]:
        found = [self.one_of(known) for _ in range(self.rng.randint(0, 3))]
        return [one for one in found if one is not None]

    def each(self, act: Callable[[Scene], Awaitable[Any]]) -> list[Any]:
        """Let it happen on every server."""

        async def happen() -> list[Any]:
            return await soon(asyncio.gather(*(act(scene) for scene in self.scenes.values())))

        return self.runner.run(happen())

    def same(self, act: Callable[[Scene], Awaitable[Any]], expected: Any) -> None:
        """Let it happen on every server, with this result."""
        for name, result in zip(self.scenes, self.each(act), strict=True):
            assert result == expected, name

    # -- gateways --

    def accept(self) -> None:
        ids = [f"r-{len(self.ids) + i}" for i in range(self.rng.randint(1, 4))]
        self.ids += ids
        self.hand_over(
            ids,
            self.rng.choice(sorted(TENANTS)),
            self.rng.choice((1, 2, 2, 3)),
            self.rng.choice((*["request"] * 6, *JOBS)),
            self.rng.choice(GATEWAYS),
            self.rng.choice((AMPLE, AMPLE, TIGHT)),
        )

    def accept_again(self) -> None:
        """By a gateway that does not know, or that finds it gone."""
        if rid := self.one_of(self.ids):
            self.hand_over([rid], "A", 2, "request", self.rng.choice(GATEWAYS), AMPLE)

    def hand_over(self, ids: list[str], tenant: str, priority: int, kind: str, gateway: str, limits: Limits) -> None:
        job, weight = JOBS[kind], TENANTS[tenant]
        new = Request(priority, tenant, weight, 0, [gateway] if job is None or job.sync else [], job is not None)
        key, digest = (job.key, job.digest) if job else ("", "")
        expected = self.model.accept(ids, new, gateway=gateway, limits=limits, key=key, digest=digest)
        more = {"tenant": tenant, "weight": weight, "priority": priority, "job": job}
        self.again = lambda scene: scene.accept(*ids, gateway=gateway, limits=limits, **more)
        for outcomes in self.each(self.again):
            states = ["QUEUED" if detail else "WAITING" for _, detail in outcomes]
            found = [(s, state if s == "OK" else detail) for (s, detail), state in zip(outcomes, states, strict=True)]
            assert found == expected
        if {status for status, _ in expected} != {"OK"}:
            self.again = None  # what was refused may be accepted the next time

    def cancel(self) -> None:
        if rid := self.one_of(self.ids):
            expired = self.rng.random() < 0.5
            expected = self.model.cancel(rid, State.EXPIRED if expired else State.CANCELLED)
            self.again = lambda scene: scene.cancel(rid, expired=expired)
            self.same(self.again, [expected])

    def attach(self) -> None:
        if rid := self.one_of(self.ids):
            gateway = self.rng.choice(GATEWAYS)
            expected = self.model.attach(rid, gateway)
            self.again = lambda scene: requests.attach(scene.c, scene.queue, rid, gateway)
            assert {found.state for found in self.each(self.again)} == {expected}

    def forget(self) -> None:
        """Its gateway knows how it ended."""
        if rid := self.one_of([rid for rid, r in self.model.requests.items() if not r.live]):
            self.model.forget(rid)
            self.again = lambda scene: requests.forget(scene.c, scene.queue, scene.gateway, [rid])
            self.each(self.again)

    def lose_gateway(self) -> None:
        """Its reply stream runs out."""
        gateway = self.rng.choice(GATEWAYS)
        self.model.lose_gateway(gateway)
        self.again = None
        self.each(lambda scene: scene.c.call("DEL", scene.queue.replies(gateway)))

    # -- workers --

    def fetch(self) -> None:
        worker, want = self.rng.choice(WORKERS), self.rng.randint(1, 9)
        expected = self.model.fetch(worker, want)
        self.take(worker, expected, self.each(lambda scene: scene.fetch(worker, want=want)))

    def fetch_alone(self) -> None:
        worker = self.rng.choice((self.model.solo, self.model.solo, *WORKERS)) or self.rng.choice(WORKERS)
        if self.rng.random() < 0.5:
            self.beat_of(worker, [])
        expected = self.model.fetch_alone(worker)
        self.take(worker, expected, self.each(lambda scene: scene.fetch_alone(worker)))

    def take(self, worker: str, expected: list[tuple[str, int]], deliveries: list[list[Delivery]]) -> None:
        """What a worker got, on every server the same, with the right payload."""
        self.again = None
        for name, delivered in zip(self.scenes, deliveries, strict=True):
            assert [(d.id, d.attempt) for d in delivered] == expected, name
            assert [d.payload for d in delivered] == [f"payload of {rid}".encode() for rid, _ in expected], name
        self.held += [Held(worker, rid, attempt) for rid, attempt in expected]

    def block(self) -> None:
        if not any(self.model.lanes[lane] for lane in range(4)):
            return  # it would block
        worker = self.rng.choice(WORKERS)
        self.again = None
        ids = self.model.block(worker)
        self.given += self.entries(worker, ids, self.each(lambda scene: scene.block(worker)))

    def entries(self, worker: str, ids: list[str], found: list[list[Entry]]) -> list[Given]:
        for name, entries in zip(self.scenes, found, strict=True):
            assert [e.request_id for e in entries] == ids, name
        known = [(rid, self.model.requests[rid]) for rid in ids]
        return [
            Given(worker, rid, r.entry, r.lane, tuple(entries[i] for entries in found))
            for i, (rid, r) in enumerate(known)
        ]

    def start_given(self) -> None:
        """Also long afterwards, when the entry may have been handed on or have ended; and fill up from the queue."""
        if given := self.one_of(self.given):
            self.start(given.worker, [given], self.rng.randint(1, 3))

    def adopt(self) -> None:
        """The worker has lost a reply, and takes all that Redis holds for it."""
        worker = self.rng.choice(WORKERS)
        found = self.each(lambda scene: work.own_entries(scene.c, scene.queue, worker))
        self.start(worker, given := self.entries(worker, self.model.held_by(worker), found), len(given))

    def start(self, worker: str, given: list[Given], want: int) -> None:
        entries = {id(scene): [g.entries[i] for g in given] for i, scene in enumerate(self.scenes.values())}
        expected = self.model.start(worker, [(g.id, g.number, g.lane) for g in given], want)
        self.take(worker, expected, self.each(lambda scene: scene.start(entries[id(scene)], worker, want=want)))

    def compute(self) -> None:
        """A worker says what its device computes, be that true or long past."""
        worker = self.rng.choice(WORKERS)
        ids = [h.id for h in self.some_of([h for h in self.held if h.worker == worker])]
        self.model.notes[worker] = ids

        async def say(scene: Scene) -> None:
            work.note_running(scene.c, scene.queue, worker, ids)
            await scene.c.call("PING")

        self.again = say
        self.each(say)

    def complete(self) -> None:
        """By whoever ever held it: the owner of now, or a zombie."""
        if held := self.one_of(self.held):
            failed = self.rng.random() < 0.5
            expected = self.model.complete(*held.pair, State.FAILED if failed else State.DONE)
            self.again = lambda scene: work.complete(scene.c, scene.queue, [held.answer(failed=failed)])
            self.same(self.again, [expected])

    def retry(self) -> None:
        if held := self.one_of(self.held):
            in_time = self.rng.random() < 0.8
            expected = self.model.retry(*held.pair, in_time=in_time)
            again = [(held.answer(failed=True), SOON_US if in_time else TOO_LATE_US)]
            self.again = lambda scene: work.retry(scene.c, scene.queue, again, errors_max=ERRORS_MAX)
            self.same(self.again, [expected])

    def release(self) -> None:
        if held := self.one_of(self.held):
            expected = self.model.release(held.worker, *held.pair)
            self.again = lambda scene: work.release(scene.c, scene.queue, held.worker, [held.pair])
            self.same(self.again, expected)

    def beat(self) -> None:
        self.beat_of(self.rng.choice(WORKERS), [h.pair for h in self.some_of(self.held)])

    def beat_of(self, worker: str, pairs: list[tuple[str, int]]) -> None:
        expected = work.Beat(*self.model.beat(worker, pairs))

        async def beat(scene: Scene) -> work.Beat:
            return await work.beat(scene.c, scene.queue, worker, pairs, lease_us=MINUTE_US)

        self.same(beat, expected)
        self.again = beat

    def die(self) -> None:
        """The worker's lease runs out; what it held is handed on, lane by lane, in the order of the entries."""
        worker = self.rng.choice(WORKERS)
        self.each(lambda scene: scene.die(worker))
        self.tick(dead=worker)

    def leave(self) -> None:
        worker = self.rng.choice(WORKERS)
        held = bool(self.model.held_by(worker))
        mourned = self.model.leave(worker)
        left = self.each(lambda scene: work.leave(scene.c, scene.queue, worker))
        assert {bool(n) for n in left} == {held}
        self.tick(dead=worker if mourned else "")

    # -- the leader --

    def tick(self, **events: str) -> None:
        expected = self.model.tick(**events)
        self.again = lambda scene: scene.tick()
        self.same(self.again, expected)

    def pass_deadline(self) -> None:
        if rid := self.one_of(self.ids):
            self.each(lambda scene: scene.pass_deadline(rid))
            self.tick(overdue=rid)

    def come_due(self) -> None:
        if rid := self.one_of([rid for rid, r in self.model.requests.items() if r.state is State.DELAYED]):
            expected = self.model.tick(due=rid)
            self.again = lambda scene: scene.come_due(rid)
            self.same(self.again, expected)

    def audit(self) -> None:
        self.model.audit()
        self.again = lambda scene: scene.audit()
        self.same(self.again, [])

    # -- an operator, and accidents --

    def replay(self) -> None:
        if letter := self.one_of([*self.letters, *self.model.letters]):
            name, alone = self.name_of(letter), self.rng.random() < 0.5

            async def replay(scene: Scene) -> tuple[str, str]:
                entry_id = await name(scene)
                more = {"budget_us": MINUTE_US, "ttl_ms": 60_000, "alone": alone}
                return await letters.replay(scene.c, scene.queue, entry_id, **more)

            self.again = None
            self.same(replay, self.model.replay(letter, alone=alone))
            self.letters.append(letter)

    def purge(self) -> None:
        if letter := self.one_of([*self.letters, *self.model.letters]):
            name = self.name_of(letter)

            async def purge(scene: Scene) -> int:
                return await letters.purge(scene.c, scene.queue, [await name(scene)])

            self.again = None
            self.same(purge, self.model.purge(letter))

    def name_of(self, letter: Letter) -> Callable[[Scene], Awaitable[str]]:
        """The letter's entry id on a server; of one that is gone an id of none."""
        rank = next((i for i, known in enumerate(self.model.letters) if known is letter), None)

        async def find(scene: Scene) -> str:
            return "1-1" if rank is None else (await scene.letters())[rank].entry_id

        return find

    def flush(self) -> None:
        """Redis loses everything; what workers and gateways have in their hands comes too late, or comes again."""
        self.model = Model(READY_MAX, CRASHES_MAX, LOSSES_MAX, ERRORS_MAX)
        self.again = None

        async def flush(scene: Scene) -> None:
            await scene.c.call("FLUSHALL")
            await scene.open()

        self.each(flush)

    def repeat_the_last_call(self) -> None:
        """Its reply was lost, so it is sent again: the state stays as it is."""
        if self.again is not None:
            before = self.each(lambda scene: snapshot(scene.c))
            for _ in range(self.rng.randint(1, 2)):
                self.each(self.again)
            assert self.each(lambda scene: snapshot(scene.c)) == before

    # -- what always holds --

    @invariant()
    def redis_holds_what_the_model_says(self) -> None:
        """One end each, growing attempts, exact lengths and counters, and a way to everything that lives."""
        self.same(lambda scene: picture(scene, sorted(self.model.requests), TENANTS), self.model.picture())

    def teardown(self) -> None:
        self.same(lambda scene: leftovers(scene.c), [])
        self.same(lambda scene: disorder(scene.c), [])
