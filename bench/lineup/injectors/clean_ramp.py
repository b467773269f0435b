"""Clean: traffic rises by half and falls again, as in the course of a day, and there is room enough for it."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.lineup.labels import Truth
from bench.lineup.scenario import CLEAN, Impact, Scenario, Span, Strength
from bench.lineup.stack import Stack

STEPS = 20
STEP_S = 0.8


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    async def rise_and_fall() -> None:
        for step in range(STEPS):
            share = 1 - abs(2 * step / (STEPS - 1) - 1)
            stack.traffic.rate_factor = 1 + (strength["factor"] - 1) * share
            await asyncio.sleep(STEP_S)
        stack.traffic.rate_factor = 1.0

    task = asyncio.create_task(rise_and_fall())
    yield
    task.cancel()
    stack.traffic.rate_factor = 1.0


SCENARIO = Scenario(
    cause=CLEAN,
    mechanism="the rate rises slowly and falls again",
    inject=inject,
    strength={"factor": Span(1.3, 1.6)},
    impact=Impact.NONE,
)
