"""The back door of a process: a scenario's function runs inside of it, and its answer comes back."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.waiting import soon

from bench.lineup import inside, links
from bench.lineup.control import CallFailed, Link, Switchboard
from bench.lineup.inside import Inside

OWN = """
import os

def who(inside, *, times):
    return [inside.role, inside.number] * times

def fail(inside):
    raise ValueError("on purpose")

def leave(inside):
    os._exit(3)
"""


@asynccontextmanager
async def helper(folder: Path) -> AsyncIterator[Link]:
    """A helper process with the functions above."""
    (folder / "own.py").write_text(OWN)
    async with Switchboard(folder / "s") as board:
        names = (inside.SOCKET_VARIABLE, inside.MODULE_VARIABLE, inside.NUMBER_VARIABLE)
        own = dict(zip(names, (str(folder / "s"), str(folder / "own.py"), "7"), strict=True))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", inside.__name__, "helper", env={**os.environ, **own}
        )
        try:
            link = await soon(board.expect(process.pid))
            await soon(link.ready.wait())
            yield link
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose path leaves room for the name of a socket."""
    return tmp_path_factory.mktemp("d")


async def test_functions_of_the_scenario_run_inside_of_the_process(folder: Path) -> None:
    """They get what is there and their arguments; what they return comes back, and so does what they raise."""
    async with helper(folder) as link:
        assert (link.role, link.number) == ("helper", 7)
        assert await link.call("who", times=2) == ["helper", 7, "helper", 7]
        with pytest.raises(CallFailed, match="on purpose"):
            await link.call("fail")
        with pytest.raises(CallFailed, match="no function nowhere"):
            await link.call("nowhere")


async def test_a_process_that_ends_fails_what_was_asked_of_it(folder: Path) -> None:
    """Nobody waits for an answer that cannot come."""
    async with helper(folder) as link:
        with pytest.raises(CallFailed, match="has ended"):
            await soon(link.call("leave"))
        await soon(link.gone.wait())


async def test_a_link_passes_everything_on_in_order_however_late(folder: Path) -> None:
    """Delays change when bytes arrive, and nothing else."""
    ended = asyncio.Event()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()
        ended.set()

    server = await asyncio.start_unix_server(echo, str(folder / "up"))
    between = Inside("helper", 0)
    links.serve_link(between, at=str(folder / "at"), upstream=str(folder / "up"))
    reader, writer = await asyncio.open_unix_connection(str(folder / "at"))
    sent = [b"%04d" % i for i in range(200)]
    for i, piece in enumerate(sent):
        if i == 50:
            links.set_delay(between, delay_ms=2, jitter_ms=3, seed=1)
        if i == 150:
            links.set_delay(between, delay_ms=0, jitter_ms=0, seed=0)
        writer.write(piece)
        if i % 10 == 9:
            await soon(writer.drain())
            await asyncio.sleep(0)
    assert await soon(reader.readexactly(800)) == b"".join(sent)
    writer.close()
    await soon(ended.wait())
    between.state["links"].close()
    server.close()
