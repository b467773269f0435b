"""The system under test: an embedded Redis, a gateway, workers, each a process of its own, as `tailrace up` has them.

What differs from `tailrace up`: each process has a back door (`inside.py`); each reaches Redis under a path of its own,
a symbolic link, so that something can stand in between without a trace in the log; there may be helper processes, and
workers that wait until they are told to serve.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.connections import target_of
from bench.discover import exchange_once
from bench.lineup import inside
from bench.lineup.control import Link, Switchboard
from bench.responses import request_bytes
from shared.broker.connection import Connection
from shared.broker.embedded import EmbeddedRedis

if TYPE_CHECKING:
    from bench.lineup.clients import Clients
    from bench.lineup.traffic import Traffic

START_S = 90.0
STOP_S = 20.0
BACKOFF_S = 0.2
"""As long as `tailrace up` waits before it starts a worker again that served and died."""
SAID_CHARS = 4000
ROOT = Path(__file__).parents[2]
_LIBRARY_VARIABLES = ("OMP_", "MKL_", "KMP_", "GOMP_", "MALLOC_", "TORCH", "ONEDNN_", "LINEUP_", "TAILRACE_")


class StackFailed(Exception):
    """A process did not start; the text has what it said."""


@dataclass(slots=True)
class Process:
    """A process of the stack; `call` runs a function of the scenario's file in it."""

    role: str
    number: int
    process: asyncio.subprocess.Process
    said: Path
    link: Link | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        """It has not ended."""
        return self.process.returncode is None

    async def call(self, function: str, **arguments: Any) -> Any:
        """Run a function of the scenario's file there. Raises CallFailed."""
        assert self.link is not None
        return await self.link.call(function, **arguments)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it is still there."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be started."""

    repository: Path
    module: Path | None = None
    workers: int = 1
    standbys: int = 0
    helpers: int = 0
    threads: int = 1
    proxied: bool = False
    supervised: bool = True
    worker_environment: Mapping[str, str] = field(default_factory=dict)


class Stack:
    """The running processes, and the traffic that they serve. Use as an async context manager; it is ready then."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        self.directory = directory
        self.log_dir = directory / "logs"
        self.plan = plan
        self.workers: list[Process] = []
        self.standbys: list[Process] = []
        self.helpers: list[Process] = []
        self.gateway: Process
        self.redis = EmbeddedRedis(directory / "redis")
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.traffic: Traffic
        self.clients: Clients
        self.every_pid: list[int] = []
        """Of all gateways and workers that ever were."""
        self._board = Switchboard(directory / "door.sock")
        self._keepers: list[asyncio.Task[None]] = []
        self._stopping = False

    async def __aenter__(self) -> "Stack":
        await self._board.__aenter__()
        try:
            await self._start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        if self.redis.process is not None and self.redis.process.returncode is None:
            self.redis.process.send_signal(signal.SIGCONT)
        for group in ([self.gateway] if hasattr(self, "gateway") else [], [*self.workers, *self.standbys]):
            await asyncio.gather(*map(_stop, group))
        await self.redis.stop()
        # After Redis: a helper may stand between it and the workers.
        for helper in self.helpers:
            helper.signal(signal.SIGKILL)
            await helper.process.wait()
        await self._board.__aexit__()

    async def _start(self) -> None:
        await self.redis.start()
        p = self.plan
        self.helpers = list(await asyncio.gather(*(self._spawn("helper", i) for i in range(p.helpers))))
        if p.proxied:
            for i in range(p.workers + p.standbys):
                await self.helpers[0].call(
                    "serve_link", at=str(self._socket("worker", i)), upstream=str(self.redis.socket)
                )
        count = p.workers + p.standbys
        everybody = await asyncio.gather(
            self._spawn("gateway", 0),
            *(self._spawn("worker", i, standby=i >= p.workers) for i in range(count)),
        )
        self.gateway, self.workers, self.standbys = (
            everybody[0],
            list(everybody[1 : 1 + p.workers]),
            list(everybody[1 + p.workers :]),
        )
        await self._wait_until_ready()
        if p.supervised:
            self._keepers = [asyncio.create_task(self._keep(i)) for i in range(p.workers)]

    async def _wait_until_ready(self) -> None:
        """The workers serve; the gateway must have heard of them, too."""
        target = target_of(self.url)
        message = request_bytes("GET", "/v2/health/ready", {"Host": target.authority})
        async with asyncio.timeout(START_S):
            while (await exchange_once(target, message)).status != 200:  # noqa: ASYNC110  (another process tells it)
                await asyncio.sleep(0.05)

    async def open_standby(self) -> Process:
        """Let the next waiting worker serve; it is one of the workers then."""
        worker = self.standbys.pop(0)
        assert worker.link is not None
        await worker.link.call("open_gate")
        self.workers.append(worker)
        return worker

    async def retire(self, worker: Process) -> None:
        """Stop a worker in good order."""
        self.workers.remove(worker)
        await _stop(worker)

    @contextlib.asynccontextmanager
    async def admin(self) -> Any:
        """A connection to Redis for a scenario's own commands."""
        async with Connection(self.redis.url, "lineup", quiet=True) as connection:
            await connection.wait_connected()
            yield connection

    def inst_of(self, process_or_pid: "Process | int") -> str:
        """The name of a process in the log; empty while it has none."""
        pid = process_or_pid if isinstance(process_or_pid, int) else process_or_pid.pid
        files = [f for f in self.log_dir.glob(f"*-{pid}-*.jsonl") if f.stem.count(".") == 0]
        return files[0].stem.partition("-")[2] if files else ""

    async def _keep(self, number: int) -> None:
        """Start a worker again whenever it dies."""
        while True:
            worker = self.workers[number]
            await worker.process.wait()
            await asyncio.sleep(BACKOFF_S)
            if not self._stopping:
                self.workers[number] = await self._spawn("worker", worker.number)

    def _socket(self, role: str, number: int) -> Path:
        return self.directory / f"{role[0]}{number}.sock"

    async def _spawn(self, role: str, number: int, *, standby: bool = False) -> Process:
        """Start a process, and wait until it is ready."""
        said = self.directory / f"{role}-{number}.txt"
        with said.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                inside.__name__,
                role,
                *self._words(role, number),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment(role, number, standby=standby),
                start_new_session=True,
                preexec_fn=_die_with_recorder,
            )
        started = Process(role, number, process, said)
        try:
            async with asyncio.timeout(START_S):
                await self._link_up(started)
        except BaseException as e:
            started.signal(signal.SIGKILL)
            if isinstance(e, TimeoutError):
                raise StackFailed(f"{role} {number} was not ready within {START_S:.0f} s:\n{_last_of(said)}") from None
            raise
        if role != "helper":
            self.every_pid.append(process.pid)
        return started

    async def _link_up(self, started: Process) -> None:
        """Return once a new process is ready. Raises StackFailed when it ends before."""
        ended = asyncio.create_task(started.process.wait())
        expected = self._board.expect(started.pid)
        try:
            either: list[asyncio.Future[Any]] = [expected, ended]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if expected.done():
                started.link = expected.result()
                ready = asyncio.create_task(started.link.ready.wait())
                try:
                    await asyncio.wait([ready, ended], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    ready.cancel()
            if ended.done():
                name = f"{started.role} {started.number}"
                raise StackFailed(f"{name} ended with {started.process.returncode}:\n{_last_of(started.said)}")
        finally:
            ended.cancel()

    def _words(self, role: str, number: int) -> Sequence[str]:
        if role == "helper":
            return ()
        path = self._socket(role, number)
        if not path.exists():
            path.symlink_to(self.redis.socket)
        common = ("--redis", f"unix://{path}", "--log-dir", str(self.log_dir), "--log-level", "warning")
        if role == "gateway":
            return (*common, "--host", "127.0.0.1", "--port", str(self.port))
        learned = ("--learned-dir", str(self.directory / "learned"))
        model = ("--model-repository", str(self.plan.repository), "--threads", str(self.plan.threads))
        return (*common, *model, *learned, "--device", "cpu")

    def _environment(self, role: str, number: int, *, standby: bool) -> dict[str, str]:
        own = {k: v for k, v in os.environ.items() if not k.startswith(_LIBRARY_VARIABLES)}
        own["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), own.get("PYTHONPATH", ""))))
        own[inside.SOCKET_VARIABLE] = str(self.directory / "door.sock")
        own[inside.NUMBER_VARIABLE] = str(number)
        if self.plan.module is not None:
            own[inside.MODULE_VARIABLE] = str(self.plan.module)
        if standby:
            own[inside.STANDBY_VARIABLE] = "1"
        return own | (dict(self.plan.worker_environment) if role == "worker" else {})


async def _stop(process: Process) -> None:
    if not process.is_alive:
        return
    process.signal(signal.SIGCONT)
    process.signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_S):
            await process.process.wait()
    except TimeoutError:
        process.signal(signal.SIGKILL)
        await process.process.wait()


def _last_of(said: Path) -> str:
    return said.read_text(errors="replace")[-SAID_CHARS:]


def _die_with_recorder() -> None:
    """In the child, before exec: end when the recorder is killed (prctl PR_SET_PDEATHSIG)."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
