"""Makes the product believe in virtual time, and quiet: clocks, logs for people, samples of the machine."""

import asyncio
import contextlib
import hashlib
import os
import random
import socket
from collections.abc import Iterator
from functools import cache
from typing import Any
from unittest.mock import patch

from simulation.network import EPOCH_US
from simulation.virtual_time import START_NS, VirtualLoop

from shared import clock, humanlog, vitals
from shared.broker import scripts
from shared.eventlog import EventLog
from shared.events import Event


class _NoSampler:
    def __init__(self, *_: object) -> None: ...

    async def run(self) -> None:
        await asyncio.Event().wait()


class _Silence:
    def __getattr__(self, _: str) -> Any:
        return lambda *_args, **_kwargs: None


class Log(EventLog):
    """Keeps the records; no file, no thread."""

    def __init__(self) -> None:
        self.records: list[Event] = []
        self.dropped = 0

    def write(self, record: Event) -> None:
        self.records.append(record)

    def close(self, reason: str) -> None:
        pass


_whole_source = scripts.source


@cache
def _source(name: str, ready_max: int) -> bytes:
    text = _whole_source(name)
    as_it_is, wanted = f" {scripts.READY_MAX},".encode(), f" {ready_max},".encode()
    assert as_it_is in text[:500], "the constants before the scripts have another form now"
    return text.replace(as_it_is, wanted, 1)


@cache
def sha_of(name: str, ready_max: int) -> str:
    """What EVALSHA calls a script where backlogs begin at `ready_max`."""
    return hashlib.sha1(_source(name, ready_max), usedforsecurity=False).hexdigest()


@contextlib.contextmanager
def believing_in(loop: VirtualLoop, *, seed: int, ready_max: int) -> Iterator[None]:
    """While it lasts, `loop` is where all clocks are read, chance follows from `seed`, and backlogs begin early."""

    def now_ns() -> int:
        return loop.now_ns

    def wall_us() -> int:
        return EPOCH_US + (loop.now_ns - START_NS) // 1000

    silence = _Silence()
    chances = random.getstate()
    random.seed(f"product {seed}")
    with (
        patch.multiple(
            clock,
            now_ns=now_ns,
            thread_cpu_ns=now_ns,
            wall_us=wall_us,
            anchor=lambda: (loop.now_ns, wall_us() * 1000, loop.now_ns),
            clock_id=lambda: "virtual",
        ),
        patch.multiple(vitals, Sampler=_NoSampler, LoopWatch=_NoSampler),
        # What a worker says of itself must not depend on where it runs.
        patch.object(os, "getpid", lambda: 1),
        patch.object(socket, "gethostname", lambda: "virtual"),
        patch.object(humanlog, "get", lambda: silence),
        patch.multiple(scripts, source=lambda name: _source(name, ready_max), sha=lambda name: sha_of(name, ready_max)),
    ):
        try:
            yield
        finally:
            random.setstate(chances)
