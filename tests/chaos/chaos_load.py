"""The clients of a chaos run, and what is judged when it is over."""

import asyncio
import random
from collections import Counter
from pathlib import Path

from chaos_toy import QUEUE, Kind
from chaos_world import LONG_S, Asked, World
from support.audit import leftovers
from support.waiting import eventually

from forensics.audit import audit
from forensics.load import Logs
from shared import clock
from shared.broker import requests
from shared.broker.connection import Connection
from shared.events import Wreq
from shared.wire import decode_reply

CLIENTS = 64
THINK_S = 0.06
BURST = 250


class Load:
    """Clients that ask, and what they remember."""

    def __init__(self, world: World, rng: random.Random, *, jobs: bool) -> None:
        self.world = world
        self.jobs = jobs
        self._rng = rng
        self._stopped = False
        self._asking: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        for _ in range(CLIENTS):
            self._own(self._client(random.Random(self._rng.random())))

    def burst(self) -> None:
        """Many more at once: a backlog."""
        for _ in range(BURST):
            self._own(self._ask(random.Random(self._rng.random())))

    async def stop(self) -> None:
        """Ask no more, and wait for the ends of what was asked."""
        self._stopped = True
        await eventually(lambda: not self._asking, "every client has its answer")

    async def abort(self) -> None:
        """Everybody leaves."""
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

    def _own(self, work: "asyncio._CoroutineLike[None]") -> None:
        task = asyncio.create_task(work)
        self._asking.add(task)
        task.add_done_callback(self._asked)

    def _asked(self, task: "asyncio.Task[None]") -> None:
        self._asking.discard(task)
        if not task.cancelled():
            task.result()  # what it raised goes to the loop's handler

    async def _client(self, rng: random.Random) -> None:
        while not self._stopped:
            await self._ask(rng)
            await asyncio.sleep(rng.uniform(0, 2 * THINK_S))

    async def _ask(self, rng: random.Random) -> None:
        kinds = (Kind.PLAIN, Kind.LARGE, Kind.FLAKY, Kind.WRONG, Kind.RAISES)
        (kind,) = rng.choices(kinds, (90, 4, 3, 1, 1))
        (manner,) = rng.choices(("patient", "impatient", "leaves", "job"), (85, 5, 5, 5 if self.jobs else 0))
        await self.world.ask(
            rng,
            kind,
            patience_s=rng.uniform(0.001, 0.5) if manner == "impatient" else LONG_S,
            leaves_after_s=rng.uniform(0, 0.1) if manner == "leaves" else None,
            job_key=f"key {rng.getrandbits(64)}" if manner == "job" else "",
        )


class Verdict:
    """What a run came to."""

    def __init__(self, world: World, log_dir: Path, stuck: list[str]) -> None:
        asked = world.asked
        self.accepted = sum(a.accepted for a in asked)
        self.ends = Counter(a.end or "none" for a in asked)
        self.lost = [a for a in asked if not a.end or (a.patience_s == LONG_S and a.end == "deadline")]
        self.wrong = [a for a in asked if a not in self.lost and a.end not in world.expected_end(a)]
        # An end that Redis had confirmed and forgot is no double: the request is computed again, and nobody hears it.
        ended_at_ns = {a.id: a.ended_at_ns for a in asked}
        twice = [rid for rid, answers in world.came.items() if len(answers) > 1 and rid in ended_at_ns]
        self.double = [rid for rid in twice if not world.may_be_forgotten(ended_at_ns[rid])]
        self.again = sum(a.submits > 1 for a in asked)
        self.audited = audit([log_dir], now_us=clock.wall_us())
        self.fenced = sum(line.record.outcome == "STALE" for line in Logs.load([log_dir], (Wreq,)).of(Wreq))
        self.stuck = stuck
        self.defects = world.defects

    def __str__(self) -> str:
        breaches = Counter(b.kind.value for b in self.audited.breaches)
        return (
            f"asked {self.ends.total()}, accepted {self.accepted}, lost {len(self.lost)}, not as expected "
            f"{len(self.wrong)}, double {len(self.double)}, stuck {len(self.stuck)}; ends {dict(self.ends)}; "
            f"handed over again {self.again}; attempts {self.audited.attempts}, more than one of "
            f"{self.audited.retried} requests, computed again "
            f"{self.audited.computed_again}, late answers refused {self.fenced}; breaches {dict(breaches)}"
        )


async def stuck_in(admin: Connection) -> list[str]:
    """What is still queued, running, delayed or counted though all clients have their answers and ticks went on."""
    found: list[str] = []

    async def nothing() -> bool:
        found[:] = await leftovers(admin, QUEUE)
        counted = [f"{QUEUE.tag}:c", f"{QUEUE.tag}:delay"]
        found.extend([f"{key} is still there" for key in counted if await admin.call("EXISTS", key)])
        return not found

    try:
        await eventually(nothing, "nothing is stuck")
    except TimeoutError:
        pass
    return found


async def judge_jobs(admin: Connection, world: World) -> None:
    """Nobody waited for them, but their results are kept."""
    for asked in world.asked:
        if asked.end == "accepted":
            found = await requests.attach(admin, QUEUE, asked.id)
            if not found.answer:
                if not world.may_be_forgotten(asked.accepted_at_ns):
                    asked.end = ""
                continue
            body = decode_reply(found.answer).body
            right = body.error_code if body.error_code else "answered"
            kind = Asked(asked.id, asked.number, asked.kind, LONG_S)
            if right in world.expected_end(kind):
                continue
            asked.end = f"job {right}"
