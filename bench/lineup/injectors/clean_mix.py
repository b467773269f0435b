"""Clean: other requests come, but they are no more work than those before."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.lineup.labels import Truth
from bench.lineup.scenario import CLEAN, Impact, Scenario, Span, Strength
from bench.lineup.stack import Stack


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    usual = stack.traffic.mix
    stack.traffic.mix = usual.scaled(strength["factor"])
    yield
    stack.traffic.mix = usual


SCENARIO = Scenario(
    cause=CLEAN,
    mechanism="requests become a little shorter",
    inject=inject,
    strength={"factor": Span(0.9, 0.75)},
    impact=Impact.NONE,
)
