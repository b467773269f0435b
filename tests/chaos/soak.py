"""Chaos by processes, for as long as it is told: `make soak MINUTES=30`. Exit status 0: every request ended as it must.

Two gateways and three workers on a Redis with an append-only file, under steady load. Every few seconds something is
killed, frozen, told to stop or wiped, and started again. A client may see its connection break with its gateway;
everything else must be the one right answer.
"""

import argparse
import asyncio
import contextlib
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from chaos_stack import ECHO, MODELS, Told, Traffic, breaches
from chaos_trouble import seed
from e2e import e2e_stack
from e2e.e2e_stack import Process
from support.audit import leftovers
from test_rolling_restart import free_port

from shared import clock
from shared.broker.connection import BrokerError, Connection
from shared.broker.embedded import EmbeddedRedis
from shared.keys import GROUP
from tailrace.supervise import die_with_parent

LEASE_S = 1.5
RATE = 100.0
WORKERS = 3
PAUSE_S = (1.0, 5.0)
SETTLED_WITHIN_S = 90.0
TORN_WITHIN_S = 1.0
"""So long after its gateway has ended a client may take to notice."""
MIB = 1 << 20


@dataclass(slots=True)
class System:
    """What runs. Each process has a name by which it is started again."""

    directory: Path
    server: EmbeddedRedis
    commands: dict[str, tuple[str | Path, ...]]
    running: dict[str, Process] = field(default_factory=dict)
    spared: set[str] = field(default_factory=set)
    """Not to be hurt now: frozen, or just starting."""

    async def start(self, name: str) -> None:
        """Start a process, and return when it serves."""
        process = self.running[name] = Process(*self.commands[name], directory=self.directory)
        said = "event=serving" if name.startswith("worker") else "event=listening"
        await e2e_stack.soon(lambda: said in process.text, within_s=e2e_stack.START_S, what=f"{name} is there")

    def pick(self, rng: random.Random, kind: str) -> str:
        """One that may be hurt; empty when there is none to spare."""
        able = [name for name in self.running if name.startswith(kind) and name not in self.spared]
        return rng.choice(able) if len(able) > 1 else ""


@dataclass(slots=True)
class Soak:
    """The trouble, and what came of it."""

    system: System
    rng: random.Random
    admin: Connection
    traffic: Traffic
    only: tuple[str, ...] = ()
    """The deeds to do; all of them when there are none."""
    deeds: Counter[str] = field(default_factory=Counter)
    gateways_ended_ns: list[list[int]] = field(default_factory=list)
    """When each was killed or told to stop, and when it was gone."""
    _began_ns: int = field(default_factory=clock.now_ns)
    _beside: set["asyncio.Task[None]"] = field(default_factory=set)

    async def run(self, seconds: float) -> None:
        """Do deeds until the time is over; then everybody is well again."""
        choices: dict[str, tuple[int, Callable[[], Awaitable[None]]]] = {
            "kill a worker": (4, lambda: self._replace("worker", signal.SIGKILL)),
            "stop a worker": (2, lambda: self._replace("worker", signal.SIGTERM)),
            "freeze a worker": (4, self._freeze),
            "kill a gateway": (1, lambda: self._replace("gateway", signal.SIGKILL)),
            "stop a gateway": (2, lambda: self._replace("gateway", signal.SIGTERM)),
            "kill Redis": (2, self._kill_redis),
            "freeze Redis": (1, self._freeze_redis),
            "flush Redis": (1, lambda: self._command("FLUSHALL")),
            "destroy the groups": (1, self._destroy_groups),
            "drop all connections": (1, lambda: self._command("CLIENT", "KILL", "TYPE", "normal")),
            "forget the scripts": (1, lambda: self._command("SCRIPT", "FLUSH")),
            "pause Redis": (1, lambda: self._command("CLIENT", "PAUSE", "700")),
            "a burst": (3, self._burst),
        }
        if self.only:
            choices = {deed: choices[deed] for deed in self.only}
        until_ns = clock.now_ns() + int(seconds * 1e9)
        while clock.now_ns() < until_ns:
            await asyncio.sleep(self.rng.uniform(*PAUSE_S))
            (deed,) = self.rng.choices(list(choices), [weight for weight, _ in choices.values()])
            self.deeds[deed] += 1
            self._note(deed)
            await choices[deed][1]()
            for task in [t for t in self._beside if t.done()]:
                self._beside.discard(task)
                task.result()
        await asyncio.gather(*self._beside)

    def _note(self, text: str) -> None:
        print(f"{(clock.now_ns() - self._began_ns) / 1e9:8.1f} {text}; answered {len(self.traffic.told)}", flush=True)

    async def _replace(self, kind: str, number: int) -> None:
        name = self.system.pick(self.rng, kind)
        if not name:
            return
        self.system.spared.add(name)
        ending = [clock.now_ns()]
        if kind == "gateway":
            self.gateways_ended_ns.append(ending)
        process = self.system.running[name]
        process.signal(number)

        async def start_again() -> None:
            status = await asyncio.to_thread(process.wait_ended)
            ending.append(clock.now_ns())
            assert number == signal.SIGKILL or status == 0, f"{name} ended with {status}:\n{process.text}"
            await self.system.start(name)
            self.system.spared.discard(name)

        self._beside.add(asyncio.create_task(start_again()))

    async def _freeze(self) -> None:
        name = self.system.pick(self.rng, "worker")
        if not name:
            return
        self.system.spared.add(name)
        process, for_s = self.system.running[name], LEASE_S * self.rng.uniform(0.3, 3)
        process.signal(signal.SIGSTOP)

        async def thaw() -> None:
            await asyncio.sleep(for_s)
            process.signal(signal.SIGCONT)
            self.system.spared.discard(name)

        self._beside.add(asyncio.create_task(thaw()))

    async def _kill_redis(self) -> None:
        server = self.system.server
        assert server.process is not None
        server.process.kill()
        await server.process.wait()
        await asyncio.sleep(self.rng.uniform(0, 2))
        await server.start()

    async def _freeze_redis(self) -> None:
        server = self.system.server
        assert server.process is not None
        server.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(self.rng.uniform(0.2, 4))
        server.process.send_signal(signal.SIGCONT)

    async def _destroy_groups(self) -> None:
        for lane in (*ECHO.lanes, ECHO.suspects):
            await self._command("XGROUP", "DESTROY", lane, GROUP)

    async def _burst(self) -> None:
        self.traffic.burst(200, ms=self.rng.choice((5, 50, 200)))

    async def _command(self, *words: str) -> None:
        try:
            await self.admin.call(*words)
        except BrokerError:
            pass  # there is no such group now, or the connection dropped was our own


def commands_of(directory: Path, server: EmbeddedRedis) -> dict[str, tuple[str | Path, ...]]:
    """Workers and gateways, the latter on ports that stay."""
    repository = e2e_stack.make_repository(directory / "models", {"echo": MODELS / "echo"})
    common = ("--log-dir", directory / "logs", "--redis", server.url, "--lease-s", str(LEASE_S))
    workers = {f"worker {i}": ("worker", *common, "--model-repository", repository) for i in range(WORKERS)}
    gateways = {f"gateway {i}": ("gateway", *common, "--port", str(free_port())) for i in range(2)}
    return {**workers, **gateways}


async def soak(minutes: float, number: int, only: tuple[str, ...]) -> bool:
    """True when every request ended as it must; else the logs stay where it says."""
    directory = Path(tempfile.mkdtemp(prefix="tr-soak-"))
    ok = await _soak(directory, minutes, number, only)
    if ok:
        shutil.rmtree(directory)
    else:
        print(f"the logs are in {directory / 'logs'}")
    return ok


async def _soak(directory: Path, minutes: float, number: int, only: tuple[str, ...]) -> bool:
    server = EmbeddedRedis(directory / "r", preexec=die_with_parent)
    await server.start()
    system = System(directory, server, commands_of(directory, server))
    try:
        async with Connection(server.url, "soak", quiet=True) as admin:
            await asyncio.gather(*(system.start(name) for name in system.commands if "worker" in name))
            await asyncio.gather(*(system.start(name) for name in system.commands if "gateway" in name))
            urls = [f"http://127.0.0.1:{command[-1]}" for command in system.commands.values() if "gateway" in command]
            async with Traffic(urls, RATE) as traffic:
                soak = Soak(system, random.Random(number), admin, traffic, only)
                await soak.run(minutes * 60)
                await traffic.more(100)
            stuck = await settle(admin)
            rss = {name: psutil.Process(p.pid).memory_info().rss / MIB for name, p in system.running.items()}
    finally:
        await asyncio.gather(*(asyncio.to_thread(p.stop) for p in system.running.values()))
        await server.stop()
    return report(soak, stuck, breaches(directory / "logs"), rss)


async def settle(admin: Connection) -> list[str]:
    """What is left in Redis that should not be."""
    found: list[str] = []

    async def is_clean() -> bool:
        found[:] = await leftovers(admin, ECHO)
        return not found

    with contextlib.suppress(AssertionError):
        await e2e_stack.soon(is_clean, within_s=SETTLED_WITHIN_S, what="nothing is left")
    return found


def report(soak: Soak, stuck: list[str], broken: list[str], rss: dict[str, float]) -> bool:
    """Print the summary; True when all is well."""
    torn = [t for t in soak.traffic.bad if is_excused(t, soak)]
    bad = [t for t in soak.traffic.bad if t not in torn]
    print(f"\ndeeds: {dict(soak.deeds)}")
    print(soak.traffic)
    print(f"refused, told to come back, or torn with their gateway: {len(torn)}")
    print(f"memory in MiB: { {n: round(m) for n, m in rss.items()} }")
    print(f"unexpected {len(bad)}, double {len(soak.traffic.twice)}, stuck {len(stuck)}, breaches {len(broken)}")
    for finding in (*bad[:10], *soak.traffic.twice[:10], *stuck[:10], *broken[:10]):
        print(f"  {finding}")
    ok = not (bad or soak.traffic.twice or stuck or broken)
    print("OK" if ok else "BROKEN")
    return ok


def is_excused(told: Told, soak: Soak) -> bool:
    """Whether a client may repeat it, as docs/architecture.md says, who here never does.

    A connection that was refused can be made elsewhere. One may break only with its gateway: all of them when it is
    killed, and when it is told to stop one that was idle and is used while it is closed. A gateway that starts while
    Redis is away knows no model, and says so.
    """
    if told.status:
        return told.status == 503 and "no worker has announced itself yet" in told.text
    return told.text.startswith("ClientConnectorError") or any(
        began_ns <= told.ended_at_ns <= ended_ns + TORN_WITHIN_S * 1e9 for began_ns, ended_ns in soak.gateways_ended_ns
    )


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--only", nargs="+", default=(), metavar="DEED", help="do these deeds only, e.g. 'kill Redis'")
    a = parser.parse_args()
    return 0 if asyncio.run(soak(a.minutes, seed(), tuple(a.only))) else 1


if __name__ == "__main__":
    sys.exit(main())
