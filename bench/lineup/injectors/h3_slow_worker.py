"""H3: one of two workers is slow in everything it does; the other is as ever."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from bench.lineup.backgrounds import ROWS, TEXTS
from bench.lineup.labels import Truth
from bench.lineup.mechanisms import blame, full_speed, is_slow, slow_down
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.stack import Stack

__all__ = ["SCENARIO", "full_speed", "is_slow", "slow_down"]


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    worker = rng.choice(stack.workers)
    blame(truth, worker)
    await worker.call("slow_down", factor=strength["factor"])
    yield
    if worker.is_alive:
        await worker.call("full_speed")


async def cure(stack: Stack, strength: Strength) -> None:
    """Take the slow one out; another one is started in its place."""
    for number, worker in enumerate(list(stack.workers)):
        if await worker.call("is_slow"):
            worker.signal(signal.SIGTERM)
            while stack.workers[number] is worker:  # noqa: ASYNC110  (the supervisor's task does it)
                await asyncio.sleep(0.1)


SCENARIO = Scenario(
    cause="H3",
    mechanism="every step of one worker needs more CPU time by one factor",
    inject=inject,
    cure=cure,
    segments=("forward", "batch_wait", "stream_wait", "collate"),
    strength={"factor": Span(3.0, 6.0)},
    backgrounds=(replace(TEXTS, name="texts2", workers=2, rate_per_s=50), ROWS),
)
