"""Real processes under steady load: the system, the clients with their expectations, and who leads what."""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import aiohttp
import psutil
from e2e import e2e_stack

from forensics.audit import audit
from shared import clock
from shared.keys import Queue

ECHO = Queue("echo", "1")
MODELS = Path(__file__).parent / "models"
FACTOR, PRIME = 1_103_515_245, 2_147_483_647
PATIENCE_S = 30.0
SERVICE_MS = 5


def answer_to(number: int) -> int:
    """What `echo` answers."""
    return number * FACTOR % PRIME


@dataclass(frozen=True, slots=True)
class Told:
    """What a client got. `status` 0: the connection failed, and `text` says how."""

    number: int
    status: int
    text: str
    request_id: str
    took_s: float
    ended_at_ns: int

    @property
    def is_right(self) -> bool:
        """True for the one right answer."""
        return self.status == 200 and json.loads(self.text)["outputs"][0]["data"] == [answer_to(self.number)]


async def ask(
    session: aiohttp.ClientSession, url: str, number: int, *, ms: int = SERVICE_MS, timeout_ms: int = 0
) -> Told:
    """One request. Never raises what the connection raises."""
    body = e2e_stack.infer_json("n", "INT64", [1, 2], [number, ms])
    headers = {"x-request-timeout-ms": str(timeout_ms)} if timeout_ms else {}
    begun_ns = clock.now_ns()
    request_id, status = "", 0
    try:
        async with session.post(f"{url}/v2/models/echo/infer", data=body, headers=headers) as response:
            text, status = await response.text(), response.status
            request_id = response.headers["x-tailrace-request-id"]
    except (aiohttp.ClientError, OSError, TimeoutError) as e:
        text = f"{type(e).__name__}: {e}"
    ended_at_ns = clock.now_ns()
    return Told(number, status, text, request_id, (ended_at_ns - begun_ns) / 1e9, ended_at_ns)


@dataclass(slots=True)
class Traffic:
    """Clients that ask `rate` times a second, whatever becomes of the answers. Use as an async context manager."""

    urls: Sequence[str]
    rate: float
    told: list[Told] = field(default_factory=list)
    _asking: set["asyncio.Task[None]"] = field(default_factory=set)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _session: aiohttp.ClientSession | None = None
    _sending: "asyncio.Task[None] | None" = None

    async def __aenter__(self) -> "Traffic":
        self._session = e2e_stack.clients()
        self._sending = asyncio.create_task(self._send())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Send no more, and wait for every answer; after a failure for none."""
        assert self._sending is not None
        assert self._session is not None
        self._sending.cancel()
        if error:
            for task in self._asking:
                task.cancel()
        await asyncio.gather(self._sending, *self._asking, return_exceptions=True)
        await self._session.close()

    async def _send(self) -> None:
        begun_ns = clock.now_ns()
        for i in itertools.count():
            await asyncio.sleep(max(0.0, i / self.rate - (clock.now_ns() - begun_ns) / 1e9))
            self._start(self.urls[i % len(self.urls)], SERVICE_MS)

    def burst(self, count: int, *, ms: int) -> None:
        """So many at once, beside the others."""
        for i in range(count):
            self._start(self.urls[i % len(self.urls)], ms)

    def _start(self, url: str, ms: int) -> None:
        task = asyncio.create_task(self._ask(url, ms))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, url: str, ms: int) -> None:
        assert self._session is not None
        self.told.append(await ask(self._session, url, next(self._numbers), ms=ms))

    async def more(self, count: int) -> None:
        """Return once so many more answers have come."""
        until = len(self.told) + count
        await e2e_stack.soon(lambda: len(self.told) >= until, within_s=PATIENCE_S, what=f"{count} more answers")

    @property
    def bad(self) -> list[Told]:
        """Whatever was not the right answer."""
        return [t for t in self.told if not t.is_right]

    @property
    def twice(self) -> list[str]:
        """Ids under which two answers came."""
        return [rid for rid, times in Counter(t.request_id for t in self.told if t.request_id).items() if times > 1]

    def __str__(self) -> str:
        took = sorted(t.took_s for t in self.told)
        return (
            f"asked {len(self.told)}, statuses {dict(Counter(t.status for t in self.told))}, wrong "
            f"{sum(t.status == 200 and not t.is_right for t in self.told)}, double {len(self.twice)}, "
            f"slowest {took[-1]:.2f} s, median {took[len(took) // 2] * 1000:.1f} ms"
        )


def pid_of(name: str) -> int:
    """The process that calls itself so."""
    return int(name.rsplit("-", 2)[1])


def process_of(name: str) -> psutil.Process:
    """The same, as something to send signals to."""
    return psutil.Process(pid_of(name))


def breaches(log_dir: Path) -> list[str]:
    """What the logs say against the promise."""
    return [f"{b.kind}: {b.id} {b.detail}" for b in audit([log_dir], now_us=clock.wall_us()).breaches]
