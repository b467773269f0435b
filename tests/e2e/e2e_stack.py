"""The real processes that the end-to-end tests drive, plain ways to ask them, and patience to wait for conditions."""

import asyncio
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import psutil
import redis
import redis.asyncio

from forensics.load import Logs
from shared import clock
from shared.events import Event
from shared.keys import Queue

ROOT = Path(__file__).parents[2]
OWN_MODELS = Path(__file__).parent / "models"
DEMO_MODELS = ROOT / "worker" / "models" / "demo"
LOOK_AGAIN_S = 0.02
START_S = 120.0
STOP_S = 20.0
ANSWER_S = 60.0
ROWS = 4
"""Rows of the example input of `mlp`."""

T = TypeVar("T")
R = TypeVar("R", bound=Event)


# -- patience -----------------------------------------------------------------------------------------------------


def eventually(look: Callable[[], T], *, within_s: float, what: str) -> T:
    """The first truthy value of `look()`; AssertionError naming `what` when the deadline passes first."""
    until_ns = clock.now_ns() + int(within_s * 1e9)
    while not (seen := look()):
        assert clock.now_ns() < until_ns, f"{what}: not within {within_s} s; last seen: {seen!r}"
        time.sleep(LOOK_AGAIN_S)
    return seen


async def soon(look: Callable[[], Any], *, within_s: float, what: str) -> Any:
    """`eventually` for a test with a loop of its own; `look` may be a coroutine function."""
    until_ns = clock.now_ns() + int(within_s * 1e9)
    while True:
        seen = look()
        if asyncio.iscoroutine(seen):
            seen = await seen
        if seen:
            return seen
        assert clock.now_ns() < until_ns, f"{what}: not within {within_s} s; last seen: {seen!r}"
        await asyncio.sleep(LOOK_AGAIN_S / 4)


# -- processes ----------------------------------------------------------------------------------------------------


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This environment without anybody's tailrace settings."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TAILRACE_")}
    return {**clean, "COLUMNS": "200", **(extra or {})}


def run_tailrace(
    *args: str | Path, env: Mapping[str, str] | None = None, within_s: float = START_S
) -> "subprocess.CompletedProcess[str]":
    """A command that ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "tailrace", *map(str, args)],
        cwd=ROOT,
        env=environment(env),
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
    )


class Process:
    """A running `tailrace ...`; `text` is all it has said."""

    def __init__(self, *args: str | Path, directory: Path, env: Mapping[str, str] | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f"{args[0]}-", suffix=".txt", dir=directory)
        self._output = Path(name)
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "tailrace", *map(str, args)],
                cwd=ROOT,
                env=environment(env),
                stdin=subprocess.DEVNULL,
                stdout=handle,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        finally:
            os.close(handle)
        self.pid = self._popen.pid

    @property
    def text(self) -> str:
        """Standard output and standard error so far."""
        return self._output.read_text(errors="replace")

    def says(self, pattern: str, *, within_s: float = START_S) -> "re.Match[str]":
        """Wait until it has said something that fits `pattern`."""

        def look() -> "re.Match[str] | None":
            found = re.search(pattern, self.text)
            assert found or self._popen.poll() is None, f"it ended with {self._popen.returncode}:\n{self.text}"
            return found

        try:
            return eventually(look, within_s=within_s, what=f"output like {pattern!r}")
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.text}") from e

    def children(self) -> list[psutil.Process]:
        """All its descendants that are alive."""
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def child(self, role: str) -> psutil.Process:
        """Its one descendant that is a `gateway`, a `worker` or `redis`."""
        (found,) = self.children_like(role)
        return found

    def children_like(self, role: str) -> list[psutil.Process]:
        """Its living descendants that are each a `gateway`, a `worker` or `redis`."""
        found = []
        for child in self.children():
            try:
                words = child.cmdline()
                kind = words[words.index("tailrace") + 1] if "tailrace" in words else "redis"
                if kind == role and child.status() != psutil.STATUS_ZOMBIE:
                    found.append(child)
            except psutil.Error:
                continue  # it has just ended
        return found

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._popen.send_signal(number)

    def ended(self) -> int | None:
        """Its exit status once it has ended."""
        return self._popen.poll()

    def wait_ended(self, *, within_s: float = STOP_S) -> int:
        """Its exit status; it must end within so long."""
        try:
            return self._popen.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {within_s} s:\n{self.text}") from None

    def stop(self) -> int:
        """Tell it to stop, and make sure that nothing of it is left."""
        family = self.children()
        if self._popen.poll() is None:
            self._popen.terminate()
            try:
                self._popen.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self._popen.wait(STOP_S)
        for child in family:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue
        return self._popen.returncode


@dataclass
class Stack:
    """Where a running system is reached and what it writes."""

    url: str
    redis_url: str
    log_dir: Path
    directory: Path
    main: Process
    started: list[Process] = field(default_factory=list)

    def start_gateway(self, *args: str) -> tuple[Process, str]:
        """One more gateway on the same Redis, and its URL. It is ready."""
        process = self._start("gateway", "--port", "0", *args)
        url = process.says(r"url=(http://\S+)")[1]
        eventually(lambda: ask(url, "/v2/health/ready").status == 200, within_s=10, what="the gateway is ready")
        return process, url

    def start_worker(self, repository: Path, *args: str) -> Process:
        """One more worker on the same Redis. It serves."""
        process = self._start("worker", "--model-repository", str(repository), *args)
        process.says(r"event=serving")
        return process

    def _start(self, kind: str, *args: str) -> Process:
        common = ("--redis", self.redis_url, "--log-dir", str(self.log_dir))
        process = Process(kind, *common, *args, directory=self.directory)
        self.started.append(process)
        return process

    def records(self, kind: type[R]) -> list[R]:
        """Every record of one type in the logs so far."""
        return [line.record for line in Logs.load([self.log_dir], (kind,)).of(kind)]

    def logged(self, kind: type[R], which: Callable[[R], bool], *, count: int = 1, within_s: float = 10) -> list[R]:
        """The records that fit, once there are `count`."""

        def look() -> list[R]:
            found = [record for record in self.records(kind) if which(record)]
            return found if len(found) >= count else []

        return eventually(look, within_s=within_s, what=f"{count} records of type {kind.__name__}")


def start_up(repository: Path | None, *args: str, env: Mapping[str, str] | None = None) -> Stack:
    """`tailrace up` on a free port in a fresh directory, ready."""
    # Short, because the socket of the embedded Redis lies in it.
    directory = Path(tempfile.mkdtemp(prefix="tr-e2e-"))
    models = ["--model-repository", str(repository)] if repository else []
    process = Process("up", "--port", "0", "--data-dir", directory, *models, *args, directory=directory, env=env)
    try:
        url = process.says(r"tailrace serves at (http\S+)")[1]
    except BaseException:
        process.stop()
        raise
    return Stack(url, f"unix://{directory}/redis/redis.sock", directory / "logs", directory, process)


def stop_all(stack: Stack) -> None:
    """Stop a stack and all that was started beside it, and remove its directory."""
    for process in (*stack.started, stack.main):
        process.stop()
    shutil.rmtree(stack.directory, ignore_errors=True)


def make_repository(directory: Path, models: Mapping[str, Path]) -> Path:
    """A model repository of copies: name -> the model that it is a copy of."""
    for name, source in models.items():
        shutil.copytree(source, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    return directory


# -- asking -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """An HTTP response, read to its end. Header names in small letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The text of `{"error": text}`, which must be all there is."""
        assert self.headers["content-type"].startswith("application/json"), self
        assert list(self.json) == ["error"], self
        return self.json["error"]


def read_answer(response: http.client.HTTPResponse) -> Answer:
    """The whole of a response."""
    body = response.read()
    return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, body)


def connect(url: str, *, within_s: float = ANSWER_S) -> http.client.HTTPConnection:
    """A keep-alive connection that does nothing by itself."""
    return http.client.HTTPConnection(urlsplit(url).netloc, timeout=within_s)


def ask(
    url: str, path: str, *, method: str = "", body: bytes | str | None = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """One request on a connection of its own; without a server, status 0."""
    connection = connect(url)
    try:
        payload = body.encode() if isinstance(body, str) else body
        connection.request(method or ("GET" if body is None else "POST"), path, payload, dict(headers or {}))
        return read_answer(connection.getresponse())
    except (ConnectionRefusedError, ConnectionResetError):  # gone, or going
        return Answer(0, {}, b"")
    finally:
        connection.close()


def infer_json(name: str, datatype: str, shape: Sequence[int], data: Sequence[Any], **more: Any) -> str:
    """The body of an infer request with one input in JSON."""
    tensor = {"name": name, "datatype": datatype, "shape": list(shape), "data": list(data)}
    return json.dumps({"inputs": [tensor], **more})


def slow_body(n: int) -> str:
    """A question to the model `slow`."""
    return infer_json("n", "INT64", [1, 1], [n])


def slow_answer(n: int) -> int:
    """What `slow` answers."""
    return 3 * n + 1


@dataclass(frozen=True)
class Reply:
    """What one of many concurrent clients got, and when."""

    n: int
    status: int
    text: str
    headers: Mapping[str, str]
    at_ns: int

    @property
    def is_right(self) -> bool:
        """True for the correct answer of `slow` to `n`."""
        return self.status == 200 and json.loads(self.text)["outputs"][0]["data"] == [slow_answer(self.n)]


async def ask_slow(
    session: aiohttp.ClientSession, url: str, n: int, *, label: str = "", headers: Mapping[str, str] | None = None
) -> Reply:
    """Ask `slow` for one number. Raises what the connection raises."""
    headers = {"x-request-id": label, **(headers or {})} if label else headers
    async with session.post(f"{url}/v2/models/slow/infer", data=slow_body(n), headers=headers) as response:
        text = await response.text()
        return Reply(n, response.status, text, dict(response.headers), clock.now_ns())


def clients() -> aiohttp.ClientSession:
    """A session without a limit of connections."""
    timeout = aiohttp.ClientTimeout(total=ANSWER_S)
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)


async def ask_at_once(url: str, numbers: Iterable[int], headers: Mapping[str, str] | None = None) -> list[Reply]:
    """Ask `slow` for all numbers, each from a client of its own, all at the same time."""
    async with clients() as session:
        return await asyncio.gather(*(ask_slow(session, url, n, headers=headers) for n in numbers))


async def ask_many(
    url: str, numbers: Iterable[int], *, at_once: int = 64, replies: list[Reply] | None = None
) -> list[Reply]:
    """Ask `slow` for all numbers, `at_once` clients at a time; what came so far is in `replies`."""
    got: list[Reply] = [] if replies is None else replies
    todo = iter(numbers)

    async def one_client(session: aiohttp.ClientSession) -> None:
        for n in todo:
            reply = await ask_slow(session, url, n)
            got.append(reply)

    async with clients() as session, asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(one_client(session))
    return got


def know_that_nap_is_quick(stack: Stack) -> None:
    """Let the worker say that `nap` can be quick, so that nothing is refused because a long nap was its best."""
    with redis.from_url(stack.redis_url) as broker:

        def is_known() -> bool:
            asked = ask(stack.url, "/v2/models/nap/infer", body=infer_json("ms", "INT64", [1, 1], [0]))
            assert asked.status == 200
            paces = broker.hvals(f"{Queue('nap', '1').tag}:pace")
            return bool(paces) and max(map(int, paces)) < 50_000

        eventually(is_known, within_s=10, what="the pace of nap")


def broker_of(stack: Stack) -> redis.asyncio.Redis:
    """A client of the Redis of a stack; use it as a context manager."""
    client: redis.asyncio.Redis = redis.asyncio.from_url(stack.redis_url)
    return client


async def live(broker: redis.asyncio.Redis, model: str) -> int:
    """Requests of a model that wait or run."""
    return int(await broker.zcard(Queue(model, "1").deadlines))


def wrong(replies: Iterable[Reply]) -> list[Reply]:
    """The replies that are not the correct answer."""
    return [reply for reply in replies if not reply.is_right]
