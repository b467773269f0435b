"""Nothing happens."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.lineup.labels import Truth
from bench.lineup.scenario import CLEAN, Impact, Scenario, Strength
from bench.lineup.stack import Stack


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    yield


SCENARIO = Scenario(cause=CLEAN, mechanism="the same traffic all the time", inject=inject, impact=Impact.NONE)
