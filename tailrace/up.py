"""Everything on one machine: an embedded Redis, gateways and workers, each a process of its own, supervised."""

import asyncio
import contextlib
import errno
import fcntl
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from shared import clock, humanlog, vitals
from shared.broker.embedded import SOCKET_PATH_MAX, EmbeddedRedis, NoRedis
from shared.eventlog import EventLog
from shared.events import Evt
from shared.process import tell_ready
from shared.redis_urls import without_secrets
from shared.settings import WorkerSettings, load
from tailrace.supervise import BACKOFF_FIRST_S, QUICK_DEATHS_MAX, STEADY_NS, Child, GaveUp, die_with_parent, how

KILL_AFTER_DRAIN_S = 5.0
READY_TIMEOUT_S = 120.0
PROBES_A_GATEWAY = 8
CURL_TEXT = "How do I remove a directory tree?"


@dataclass(frozen=True, kw_only=True, slots=True)
class UpOptions:
    """What `tailrace up` was asked for. Empty `redis`: an embedded one; `threads` 0: the cores left, shared evenly.

    With `choose_workers` the numbers of workers and, unless it is given, of threads are found by measurement.
    """

    workers: int = 1
    choose_workers: bool = False
    gateways: int = 1
    model_repository: str = ""
    redis: str = ""
    host: str = "127.0.0.1"
    port: int = 8000
    data_dir: Path = Path(".tailrace")
    log_dir: Path | None = None
    device: str = "cpu"
    threads: int = 0
    log_level: str = "info"
    drain_s: float = 30.0


class Stack:
    """The processes of one `tailrace up`."""

    def __init__(self, options: UpOptions) -> None:
        self.options = options
        self.data_dir = options.data_dir.absolute()
        self.log_dir = (options.log_dir or options.data_dir / "logs").absolute()
        self.port = options.port or _free_port(options.host)
        self.url = f"http://{options.host}:{self.port}"
        self.redis_url = options.redis
        self.gateways: list[Child] = []
        self.workers: list[Child] = []
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._redis: EmbeddedRedis | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._log: EventLog | None = None

    @property
    def shown_redis_url(self) -> str:
        """The URLs of Redis without passwords, for people."""
        return without_secrets(self.redis_url)

    async def start(self) -> None:
        """Start everything. Raises GaveUp, NoRedis."""
        self._lock()
        self._check_port()
        if self.options.choose_workers:
            self.options = await _with_chosen_workers(self.options, self.data_dir)
        if not self.redis_url:
            self._redis = EmbeddedRedis(self.data_dir / "redis", preexec=die_with_parent)
            if len(str(self._redis.socket)) > SOCKET_PATH_MAX:
                self._redis.socket_directory = Path(tempfile.mkdtemp(prefix="tailrace-redis-"))
            await self._redis.start()
            self.redis_url = self._redis.url
            self._own(self._keep_redis(self._redis))
        threads = self.options.threads or max(1, (vitals.usable_cores() - 1) // max(1, self.options.workers))
        base = [sys.executable, "-P", "-m", "tailrace"]  # -P: no module of the current directory
        common = ["--log-dir", str(self.log_dir), "--log-level", self.options.log_level]
        common += ["--drain-s", str(self.options.drain_s)]
        # The URL may hold a password, which must not show in the list of processes.
        env = {"TAILRACE_REDIS": self.redis_url}
        address = ["--host", self.options.host, "--port", str(self.port), "--gateways", str(self.options.gateways)]
        self.gateways = [
            Child(
                "gateway" if self.options.gateways == 1 else f"gateway {i + 1}",
                [*base, "gateway", *common, *address],
                env,
            )
            for i in range(self.options.gateways)
        ]
        repository = ["--model-repository", self.options.model_repository] if self.options.model_repository else []
        if "TAILRACE_LEARNED_DIR" not in os.environ:
            repository += ["--learned-dir", str(self.data_dir / "learned")]
        self.workers = [
            Child(
                f"worker {i + 1}",
                [*base, "worker", *common, "--device", self.options.device, "--threads", str(threads), *repository],
                env,
            )
            for i in range(self.options.workers)
        ]
        for child in (*self.gateways, *self.workers):
            self._own(self._keep(child))

    async def wait_ready(self) -> None:
        """Return once a request would be answered; without workers, once the gateway listens. Raises GaveUp."""
        probe = "ready" if self.options.workers else "live"
        # The kernel deals connections out among gateways: so many in a row, and all of them are most likely ready.
        needed = 1 if self.options.gateways == 1 else PROBES_A_GATEWAY * self.options.gateways
        succeeded = 0
        until_ns = clock.now_ns() + int(READY_TIMEOUT_S * 1e9)
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=2)) as session:
            while clock.now_ns() < until_ns:
                if self.failed.done():
                    self.failed.result()
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with session.get(f"{self.url}/v2/health/{probe}") as response:
                        succeeded = succeeded + 1 if response.status == 200 else 0
                        if succeeded >= needed:
                            return
                        if succeeded:
                            continue
                await asyncio.sleep(0.05)
        raise GaveUp(f"nothing was ready within {READY_TIMEOUT_S:.0f} s; the processes' messages are above")

    async def stop(self) -> None:
        """Stop in order: the gateways finish their requests, then the workers, then Redis."""
        await asyncio.gather(*(g.stop(self.options.drain_s + KILL_AFTER_DRAIN_S) for g in self.gateways))
        await asyncio.gather(*(w.stop(self.options.drain_s + KILL_AFTER_DRAIN_S) for w in self.workers))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._redis:
            await self._redis.stop()
        if self._log:
            self._log.close("stopped")

    async def _keep(self, child: Child) -> None:
        try:
            await child.keep_running()
        except (GaveUp, OSError) as e:
            if not self.failed.done():
                self.failed.set_exception(
                    e if isinstance(e, GaveUp) else GaveUp(f"{child.title} cannot be started: {e}")
                )

    async def _keep_redis(self, redis: EmbeddedRedis) -> None:
        """Start Redis again whenever it dies, also while the others finish what they hold."""
        deaths, started_ns, down_since_ns = 0, clock.now_ns(), 0
        while True:
            assert redis.process is not None
            status = await redis.process.wait()
            died_ns = clock.now_ns()
            down_since_ns = down_since_ns or died_ns
            deaths = 1 if died_ns - started_ns > STEADY_NS else deaths + 1
            if deaths >= QUICK_DEATHS_MAX:
                if not self.failed.done():
                    text = f"the embedded Redis died {deaths} times in a row, the last time with {how(status)}"
                    advice = f"see {redis.directory / 'redis.log'}, or name a Redis of your own with --redis"
                    self.failed.set_exception(GaveUp(f"{text}; {advice}"))
                return
            humanlog.get().warning("the embedded Redis died; starting it again on the same data", how=how(status))
            if deaths > 1:  # the first time at once, since everybody waits for it
                await asyncio.sleep(BACKOFF_FIRST_S * 2 ** (deaths - 2))
            started_ns = clock.now_ns()
            try:
                await redis.start()
            except (NoRedis, OSError) as e:
                humanlog.get().warning("the embedded Redis did not start", reason=str(e))
                continue
            if self._log is None:
                self._log = EventLog(self.log_dir, "up", f"{socket.gethostname()}-{os.getpid()}")
            self._log.write(Evt("redis_restart", down_since_ns, clock.now_ns()))
            down_since_ns = 0

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    def _check_port(self) -> None:
        """Whoever listens there already would answer our question whether we are ready."""
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind((self.options.host, self.port))
            except OSError as e:
                what = "is in use; stop what listens there, or choose another --port (0 takes a free one)"
                reason = what if e.errno == errno.EADDRINUSE else f"cannot be used on {self.options.host}: {e.strerror}"
                raise GaveUp(f"port {self.port} {reason}") from e

    def _lock(self) -> None:
        """Two stacks on the same data would break each other."""
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            self._lock_file = (self.data_dir / "lock").open("w")
        except OSError as e:
            raise GaveUp(f"--data-dir {self.data_dir} cannot be used: {e.strerror}") from e
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise GaveUp(f"another tailrace runs on {self.data_dir}; stop it, or choose another --data-dir") from None


async def _with_chosen_workers(options: UpOptions, data_dir: Path) -> UpOptions:
    """The options with the numbers that suit the models best. Raises GaveUp."""
    from bench.errors import CannotMeasure
    from tailrace import cores

    # As the workers will read it.
    names = load(WorkerSettings, flags={}, environ=os.environ).models
    models = tuple(sorted({name.strip() for name in names.split(",") if name.strip()}))
    try:
        found = await cores.find(options.model_repository, models, threads=options.threads, data_dir=data_dir)
    except CannotMeasure as e:
        raise GaveUp(f"--workers auto: {e}") from e
    way = found.choice.way
    return replace(options, workers=way.workers, threads=way.threads, choose_workers=False)


@contextlib.asynccontextmanager
async def running(options: UpOptions) -> AsyncIterator[Stack]:
    """A ready stack, stopped in the end. Raises GaveUp, NoRedis."""
    stack = Stack(options)
    try:
        await stack.start()
        await stack.wait_ready()
        yield stack
    finally:
        await stack.stop()


def main(options: UpOptions) -> int:
    """Run until told to stop; returns the exit status."""
    humanlog.configure("up", level=options.log_level)
    try:
        asyncio.run(_main(options))
    except (GaveUp, NoRedis) as e:
        humanlog.get().error("stopped", reason=str(e))
        return 1
    return 0


async def _main(options: UpOptions) -> None:
    told = told_to_stop()
    stack = Stack(options)
    try:
        starting = asyncio.create_task(stack.start())  # a Redis with much data takes its time
        await asyncio.wait([starting, told], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return
        await starting
        ready = asyncio.create_task(stack.wait_ready())
        await asyncio.wait([ready, told], return_when=asyncio.FIRST_COMPLETED)
        if not told.done():
            await ready
            print(greeting(stack), flush=True)
            tell_ready()
            await asyncio.wait([told, stack.failed], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if stack.failed.done():
            stack.failed.result()
    finally:
        if stack.gateways:
            humanlog.get().info("stopping")
        await stack.stop()


def told_to_stop() -> "asyncio.Future[None]":
    """A future that SIGINT or SIGTERM fulfils."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not told.done():
            told.set_result(None)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, tell)
    return told


def greeting(stack: Stack, last: str = "Ctrl-C stops everything.") -> str:
    """What a new user needs: where it listens, a line that works, and how to ask where the time went."""
    lines = [f"\ntailrace serves at {stack.url}"]
    if not stack.options.workers:
        lines += ["No worker yet. Start one:", f"  {_command()} worker --redis {stack.shown_redis_url}"]
    elif stack.options.model_repository:
        lines += ["What it serves:", f"  curl -s -X POST {stack.url}/v2/repository/index"]
    else:
        data = f'{{"model": "minilm", "input": "{CURL_TEXT}"}}'
        lines += ["Try it:", f"  curl -si {stack.url}/v1/embeddings -H 'content-type: application/json' -d '{data}'"]
    log_dir = os.path.relpath(stack.log_dir)
    option = "" if log_dir == ".tailrace/logs" else f" --log-dir {log_dir}"
    command = _command()
    lines += [
        "Where did the time go (the id is in the reply's x-request-id):",
        f"  {command} explain ID{option}",
        f"  {command} requests --slowest 5{option}",
        last,
    ]
    return "\n".join(lines)


def _command() -> str:
    """How the user can call us again: the name, if the shell would find it, else the path."""
    found = shutil.which("tailrace")
    here = Path(sys.argv[0]).absolute()
    if found and Path(found).absolute() == here:
        return "tailrace"
    return os.path.relpath(here) if here.name == "tailrace" else f"{sys.executable} -m tailrace"


def _free_port(host: str) -> int:
    with socket.socket() as s:
        s.bind((host, 0))
        return int(s.getsockname()[1])
