"""Decoy: a setting is changed that has nothing to do with speed, and seconds later the gateway begins to block."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.lineup.injectors.b3_blocking import SCENARIO as BLOCKING
from bench.lineup.injectors.b3_blocking import begin, end
from bench.lineup.injectors.b3_blocking import inject as block
from bench.lineup.labels import Truth
from bench.lineup.mechanisms import everywhere, note_config
from bench.lineup.scenario import Scenario, Strength
from bench.lineup.stack import Stack
from shared import clock

__all__ = ["SCENARIO", "begin", "end", "note_config"]
BETWEEN_S = 5.0


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    await everywhere(stack, "note_config", drain_s=rng.choice([10.0, 20.0, 45.0]))
    await asyncio.sleep(BETWEEN_S)
    truth.started_unix_us = clock.wall_us()
    async with block(stack, rng, strength, truth):
        yield


SCENARIO = Scenario(
    cause=BLOCKING.cause,
    mechanism="a change of a setting before a fault that has nothing to do with it",
    inject=inject,
    segments=BLOCKING.segments,
    strength=BLOCKING.strength,
    lookalikes=("A3", "A4", "A7", "C6", "C7"),
)
