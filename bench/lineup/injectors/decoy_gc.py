"""Decoy: Redis stands still, and each time the workers make a short garbage collection that does no harm."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.lineup.injectors.f1_fork import SCENARIO as FORK
from bench.lineup.injectors.f1_fork import inject as fork
from bench.lineup.inside import Inside
from bench.lineup.labels import Truth
from bench.lineup.mechanisms import everywhere
from bench.lineup.scenario import Scenario, Strength
from bench.lineup.stack import Stack

OBJECTS = 25_000
"""Some milliseconds of a full collection."""


def collect(inside: Inside) -> None:
    """One collection of what is new since the start."""
    import gc

    cache = [{"id": i} for i in range(OBJECTS)]
    gc.collect()
    del cache


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    async def follow() -> None:
        seen = 0
        while True:
            if len(truth.episodes) > seen:
                seen = len(truth.episodes)
                await everywhere(stack, "collect")
            await asyncio.sleep(0.02)

    task = asyncio.create_task(follow())
    try:
        async with fork(stack, rng, strength, truth):
            yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


SCENARIO = Scenario(
    cause=FORK.cause,
    mechanism="short collections at the very moments at which Redis stands still",
    inject=inject,
    segments=FORK.segments,
    strength=FORK.strength,
    lookalikes=("B1", "B2"),
)
