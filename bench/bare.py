"""Measures what a bare model does with the cores: no Redis, no HTTP, only passes, in several processes at once.

Theory of operation. A crew of processes (`bare_process`) holds the models; each may run with any number of torch
threads. For a sample, as many of them as the way has workers are prepared, then all begin at one instant and run passes
for the same time; whoever is done goes on uncounted until all are. The rate of a process is its requests over the time
until its last pass ended, and rates add up; `evened` then takes out which requests a window happened to meet. Samples
of the ways stand side by side in each round, and rounds follow each other, so noise of the machine meets all alike.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from bench.bare_cells import Cell, Sample, Way, evened
from bench.bare_protocol import Began, Command, Failed, Go, Halt, Loaded, Prepare, Ran, Ready, Reply, Setup
from bench.errors import CannotMeasure
from shared import clock

BATCHES = (1, 2, 4, 8, 16, 32)
START_NS = 20_000_000
"""From the order to begin until the beginning, so that all have heard it; who hears it later begins later."""
LOAD_LIMIT_S = 300.0
PASS_LIMIT_S = 120.0
"""Most time that one pass may take."""
LINE_BYTES_MAX = 64 << 20
_GOLDEN = (5**0.5 - 1) / 2

R = TypeVar("R")


class Member:
    """One process of the crew."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, setup: Setup) -> "Member":
        """A process that begins to load."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "bench.bare_process", msgspec.json.encode(setup).decode()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # As the command `worker` does.
            env={"OMP_WAIT_POLICY": "PASSIVE", **os.environ},
            start_new_session=True,
            limit=LINE_BYTES_MAX,
        )
        return cls(process)

    def tell(self, command: Command) -> None:
        """Say something that has no answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(command) + b"\n")

    async def hear(self, kind: type[R], *, within_s: float) -> R:
        """Its next answer. Raises CannotMeasure."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(within_s):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise CannotMeasure(f"a process that measures gave no sign for {within_s:.0f} s") from None
        if not line:
            status = await self._process.wait()
            raise CannotMeasure(f"a process that measures ended with status {status}; its messages are above")
        reply = msgspec.json.decode(line, type=Reply)
        if isinstance(reply, Failed):
            raise CannotMeasure(reply.reason)
        assert isinstance(reply, kind)
        return reply

    async def end(self) -> None:
        """Kill it: it holds nothing that anybody needs."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


class Crew:
    """Processes that hold the same models; use it as a context manager. `cores` is what this machine may use."""

    def __init__(self, setup: Setup, *, cores: int) -> None:
        self.cores = cores
        self.models: list[Loaded] = []
        self.rss_bytes = 0
        """Of a process that holds all the models."""
        self.torch = ""
        self._setup = setup
        self._members: list[Member] = []

    async def __aenter__(self) -> Self:
        """Start the first. Raises CannotMeasure."""
        try:
            await self.grow(1)
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def grow(self, count: int) -> None:
        """Return once there are at least `count` processes, loaded. Raises CannotMeasure."""
        fresh = []
        for _ in range(count - len(self._members)):
            fresh.append(await Member.start(self._setup))
            self._members.append(fresh[-1])
        for began in await _all(member.hear(Began, within_s=LOAD_LIMIT_S) for member in fresh):
            self.models, self.rss_bytes, self.torch = began.models, began.rss_bytes, began.torch

    async def sample(self, model: str, way: Way, batch: int, *, length_s: float, begin: float = 0.0) -> Sample:
        """What the model with that label does for so long. `begin` (0 to 1) is where its batches begin.

        Raises CannotMeasure.
        """
        await self.grow(way.workers)
        members = self._members[: way.workers]
        for i, member in enumerate(members):
            # Each its own batches, as in real life.
            member.tell(Prepare(model, way.threads, batch, (begin + i / way.workers) % 1.0))
        await _all(member.hear(Ready, within_s=PASS_LIMIT_S) for member in members)
        at_ns = clock.now_ns() + START_NS
        for member in members:
            member.tell(Go(at_ns, int(length_s * 1e9)))
        ran = await _all(member.hear(Ran, within_s=length_s + PASS_LIMIT_S) for member in members)
        for member in members:
            member.tell(Halt())
        # Whatever is measured next must not meet their last passes.
        await _all(member.hear(Ready, within_s=PASS_LIMIT_S) for member in members)
        return sample_of(ran)

    async def _end(self) -> None:
        await asyncio.gather(*(member.end() for member in self._members))
        self._members = []


def sample_of(ran: Sequence[Ran]) -> Sample:
    """What processes did at the same time, together."""
    rates = [r.requests / (r.ended_ns - r.began_ns) * 1e9 for r in ran]
    return Sample(
        per_s=sum(rates),
        durations_ns=tuple(duration for r in ran for duration in r.durations_ns),
        cores=sum(r.cpu_ns / (r.ended_ns - r.began_ns) for r in ran),
        units_useful=sum(r.units_useful for r in ran),
        units_computed=sum(r.units_computed for r in ran),
        requests=sum(r.requests for r in ran),
        units_per_s=sum(r.units_useful / (r.ended_ns - r.began_ns) * 1e9 for r in ran),
    )


def batch_sizes(model: Loaded, wanted: Sequence[int] = BATCHES) -> list[int]:
    """Those that the model allows; it has always 1."""
    return [size for size in wanted if size <= max(1, model.rows_max)] or [1]


async def measure(
    crew: Crew,
    model: str,
    ways: Sequence[Way],
    batches: Sequence[int],
    *,
    rounds: int,
    length_s: float,
    until_ns: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Cell]:
    """Each way with each batch size, in so many rounds; rates are in requests of average size.

    No round but the first begins at `until_ns` or later. Raises CannotMeasure.
    """
    await crew.grow(max(way.workers for way in ways))
    samples: dict[tuple[Way, int], list[Sample]] = {(way, size): [] for way in ways for size in batches}
    for number in range(rounds):
        if number and until_ns is not None and clock.now_ns() >= until_ns:
            break
        for way, size in _order(ways, batches, number):
            progress(f"round {number + 1} of {rounds}: {way}, batches of {size}")
            # All ways see the same batches in a round, and others in the next.
            begin = number * _GOLDEN % 1.0
            samples[way, size].append(await crew.sample(model, way, size, length_s=length_s, begin=begin))
    return evened([Cell(way, size, tuple(found)) for (way, size), found in samples.items()])


def _order(ways: Sequence[Way], batches: Sequence[int], number: int) -> Iterator[tuple[Way, int]]:
    """The ways side by side, and back in every other round, so that a drift of the machine favours none."""
    for size in batches:
        for way in ways if number % 2 == 0 else reversed(ways):
            yield way, size


async def _all(answers: Iterable[Coroutine[Any, Any, R]]) -> list[R]:
    """All of them; the first error ends the waiting for the others, and is raised by itself."""
    tasks = [asyncio.create_task(answer) for answer in answers]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
