"""What goes wrong in a chaos run: a shuffled list of deeds, each a line in the story that a failed run tells."""

import asyncio
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from chaos_world import Gateway, Worker, World
from support.proxy import Fault

from shared import clock
from shared.broker.connection import BrokerError, Connection

SEED_VARIABLE = "CHAOS_SEED"
"""Set it to what a failed run printed, to have the same deeds and requests again; timing stays the machine's own."""
PAUSE_S = (0.03, 0.3)
"""Between two deeds."""
REDIS_AWAY_S = (0.0, 0.4)
FROZEN_LEASES = (1.3, 3.0)


class Deed(StrEnum):
    """Something that goes wrong, or is done on purpose at a bad moment."""

    CRASH = "a worker crashes"
    FREEZE = "a worker freezes past its lease"
    RETIRE = "a worker is told to stop"
    WORKER_LINK = "a worker's connection"
    GATEWAY_LINK = "a gateway's connection"
    KILL_CONNECTIONS = "Redis drops all connections"
    PAUSE = "Redis pauses"
    FORGET_SCRIPTS = "Redis forgets the scripts"
    KILL_REDIS = "Redis is killed"
    FLUSH = "Redis is flushed"
    BURST = "many requests at once"


ALWAYS = {
    Deed.CRASH: 5,
    Deed.FREEZE: 4,
    Deed.RETIRE: 2,
    Deed.WORKER_LINK: 10,
    Deed.GATEWAY_LINK: 8,
    Deed.KILL_CONNECTIONS: 1,
    Deed.PAUSE: 1,
    Deed.FORGET_SCRIPTS: 1,
    Deed.BURST: 3,
}
SOME = {deed: (times + 1) // 2 for deed, times in ALWAYS.items()}
LINK_FAULTS = (
    Fault.LOSE_REQUEST,
    Fault.LOSE_REPLY,
    Fault.CUT_MID_REPLY,
    Fault.CUT_MID_REQUEST,
    Fault.HALF_CLOSE,
    Fault.NONE,  # cut off between two messages
)


def seed() -> int:
    """The seed of this run, told, so that it can be had again."""
    chosen = int(os.environ.get(SEED_VARIABLE) or int.from_bytes(os.urandom(4), "little"))
    print(f"{SEED_VARIABLE}={chosen}")
    return chosen


@dataclass(slots=True)
class Trouble:
    """Does the deeds, one after the other. `story` is what it did, and when."""

    world: World
    rng: random.Random
    admin: Connection
    burst: Callable[[], None]
    story: list[str] = field(default_factory=list)
    _began_ns: int = field(default_factory=clock.now_ns)
    _frozen: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)

    async def run(self, *deeds: dict[Deed, int]) -> None:
        """Every deed as often as it is said, in random order. Afterwards nobody is frozen, and nothing is faulty."""
        todo = [deed for some in deeds for deed, times in some.items() for _ in range(times)]
        self.rng.shuffle(todo)
        for deed in todo:
            await asyncio.sleep(self.rng.uniform(*PAUSE_S))
            await self._do(deed)
        await asyncio.gather(*self._frozen.values())
        for someone in (*self.world.workers, *self.world.gateways):
            someone.proxy.set(Fault.NONE)
        self._note("nothing goes wrong any more")

    async def abort(self) -> None:
        """Leave everything as it is."""
        for thawing in self._frozen.values():
            thawing.cancel()
        await asyncio.gather(*self._frozen.values(), return_exceptions=True)

    def _note(self, text: str) -> None:
        self.story.append(f"{(clock.now_ns() - self._began_ns) / 1e9:7.3f} {text}")

    async def _do(self, deed: Deed) -> None:
        match deed:
            case Deed.CRASH | Deed.RETIRE:
                await self._replace(deed)
            case Deed.FREEZE:
                self._freeze()
            case Deed.WORKER_LINK:
                self._hurt(self._awake())
            case Deed.GATEWAY_LINK:
                self._hurt(self.rng.choice(self.world.gateways))
            case Deed.KILL_CONNECTIONS:
                await self._command("CLIENT", "KILL", "TYPE", "normal")
            case Deed.PAUSE:
                await self._command("CLIENT", "PAUSE", "300")
            case Deed.FORGET_SCRIPTS:
                await self._command("SCRIPT", "FLUSH")
            case Deed.FLUSH:
                await self._command("FLUSHALL")
            case Deed.KILL_REDIS:
                await self._kill_redis()
            case Deed.BURST:
                self._note(deed)
                self.burst()

    def _awake(self) -> Worker:
        return self.rng.choice([w for w in self.world.workers if w.name not in self._frozen])

    async def _replace(self, deed: Deed) -> None:
        worker = self._awake()
        self.world.workers.remove(worker)
        self._note(f"{deed}: {worker.name}, holding {len(worker.loop.held)}")
        await (worker.crash() if deed is Deed.CRASH else worker.stop())
        await asyncio.sleep(self.rng.uniform(0, 0.2))
        self._note(f"{(await self.world.add_worker()).name} starts")

    def _freeze(self) -> None:
        worker = self._awake()
        for_s = self.world.lease_s * self.rng.uniform(*FROZEN_LEASES)
        self._note(f"{Deed.FREEZE}: {worker.name}, holding {len(worker.loop.held)}, for {for_s:.2f} s")
        worker.proxy.set(Fault.STALL)

        async def thaw() -> None:
            await asyncio.sleep(for_s)
            self._note(f"{worker.name} thaws, holding {len(worker.loop.held)}")
            worker.proxy.set(Fault.NONE)
            del self._frozen[worker.name]

        self._frozen[worker.name] = asyncio.create_task(thaw())

    def _hurt(self, someone: Worker | Gateway) -> None:
        fault = self.rng.choice(LINK_FAULTS)
        self._note(f"{someone.name}: {fault if fault is not Fault.NONE else 'cut off'}")
        if fault is Fault.NONE:
            someone.proxy.cut()
        else:
            someone.proxy.set(fault)

    async def _command(self, *words: str) -> None:
        self._note(" ".join(words))
        try:
            await self.admin.call(*words)
        except BrokerError:
            pass  # of CLIENT KILL: it may be us

    async def _kill_redis(self) -> None:
        server = self.world.server
        assert server.process is not None
        away_s = self.rng.uniform(*REDIS_AWAY_S)
        self._note(f"{Deed.KILL_REDIS}, for {away_s:.2f} s")
        self.world.redis_killed_at_ns.append(clock.now_ns())
        server.process.kill()
        await server.process.wait()
        await asyncio.sleep(away_s)
        await server.start()
        self._note("Redis is back")
