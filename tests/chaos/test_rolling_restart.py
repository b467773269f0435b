"""A new release: workers and gateways are stopped and started one after the other, and no client sees an error."""

import asyncio
import itertools
import json
import signal
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from chaos_stack import MODELS, answer_to, breaches
from e2e import e2e_stack
from e2e.e2e_stack import Process

from shared import clock
from shared.broker.embedded import EmbeddedRedis
from tailrace.supervise import die_with_parent

CLIENTS = 12
THINK_S = 0.06
SERVICE_MS = 20
PATIENCE_S = 20.0


@dataclass(slots=True)
class Clients:
    """Clients that keep their connections, and go to the other gateway when one refuses the connection.

    An inference has no effect but its answer, so they also repeat one whose connection ended before the first byte of
    a response; such are counted in `cut_off`.
    """

    urls: Sequence[str]
    answered: int = 0
    refused: int = 0
    cut_off: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    asked_to_leave: int = 0
    stopped: bool = False

    async def run(self) -> None:
        """Ask until stopped."""
        numbers = itertools.count()
        async with e2e_stack.clients() as session, asyncio.TaskGroup() as group:
            for i in range(CLIENTS):
                group.create_task(
                    self._client(session, numbers, itertools.cycle(self.urls[i % 2 :] + self.urls[: i % 2]))
                )

    async def _client(
        self, session: aiohttp.ClientSession, numbers: "itertools.count[int]", urls: "itertools.cycle[str]"
    ) -> None:
        while not self.stopped:
            number = next(numbers)
            until_ns = clock.now_ns() + int(PATIENCE_S * 1e9)
            while not await self._try(session, number, next(urls)):
                if clock.now_ns() > until_ns:
                    self.errors.append(f"{number} never reached a gateway")
                    break
                await asyncio.sleep(0.01)
            await asyncio.sleep(THINK_S)

    async def _try(self, session: aiohttp.ClientSession, number: int, url: str) -> bool:
        body = e2e_stack.infer_json("n", "INT64", [1, 2], [number, SERVICE_MS])
        try:
            async with session.post(f"{url}/v2/models/echo/infer", data=body) as response:
                text = await response.text()
        except aiohttp.ClientConnectorError:
            self.refused += 1
            return False
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as e:
            self.cut_off.append(repr(e))
            return False
        except (aiohttp.ClientError, TimeoutError) as e:
            self.errors.append(repr(e))
            return True
        self.statuses[response.status] += 1
        self.asked_to_leave += response.headers.get("Connection", "").lower() == "close"
        if response.status != 200 or json.loads(text)["outputs"][0]["data"] != [answer_to(number)]:
            self.errors.append(f"{response.status} {text}")
        self.answered += 1
        return True

    async def more(self, count: int) -> None:
        """Return once so many more are answered."""
        until = self.answered + count
        await e2e_stack.soon(lambda: self.answered >= until, within_s=PATIENCE_S, what=f"{count} more answers")


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.mark.parametrize("rounds", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_a_rolling_restart_costs_no_client_an_error(short_dir: Path, rounds: int) -> None:
    """Two workers and two gateways, each by SIGTERM, under load. Connections are refused at most, never torn."""
    server = EmbeddedRedis(short_dir / "r", preexec=die_with_parent)
    await server.start()
    repository = e2e_stack.make_repository(short_dir / "models", {"echo": MODELS / "echo"})
    common = ("--log-dir", short_dir / "logs", "--redis", server.url)
    ports = [free_port(), free_port()]
    commands: dict[str, tuple[str | Path, ...]] = {
        "worker 1": ("worker", *common, "--model-repository", repository),
        "worker 2": ("worker", *common, "--model-repository", repository),
        "gateway 1": ("gateway", *common, "--port", str(ports[0])),
        "gateway 2": ("gateway", *common, "--port", str(ports[1])),
    }
    running: dict[str, Process] = {}

    async def start(*names: str) -> None:
        for name in names:
            running[name] = Process(*commands[name], directory=short_dir)
        for name in names:
            said = "event=serving" if name.startswith("worker") else "event=listening"
            await e2e_stack.soon(
                lambda p=running[name], s=said: s in p.text, within_s=e2e_stack.START_S, what=f"{name} is there"
            )

    try:
        await start("worker 1", "worker 2")
        await start("gateway 1", "gateway 2")
        clients = Clients([f"http://127.0.0.1:{port}" for port in ports])
        asking = asyncio.create_task(clients.run())
        await clients.more(100)
        for name in [*commands] * rounds:
            running[name].signal(signal.SIGTERM)
            assert await asyncio.to_thread(running[name].wait_ended) == 0, running[name].text
            await start(name)
            await clients.more(50)
        clients.stopped = True
        await asking
    finally:
        await asyncio.gather(*(asyncio.to_thread(p.stop) for p in running.values()))
        await server.stop()

    print(
        f"answered {clients.answered}, refused connections {clients.refused}, told to leave {clients.asked_to_leave}, "
        f"cut off before a response {len(clients.cut_off)} {clients.cut_off[:3]}"
    )
    assert not clients.errors, clients.errors[:5]
    assert clients.asked_to_leave
    assert len(clients.cut_off) <= clients.answered // 1000, clients.cut_off
    assert not breaches(short_dir / "logs")
