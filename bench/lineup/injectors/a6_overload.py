"""A6: more requests come than can be served, for a while."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from bench.lineup.backgrounds import ROWS, TEXTS
from bench.lineup.labels import Truth
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.stack import Stack


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    stack.traffic.rate_factor = strength["factor"]
    yield
    stack.traffic.rate_factor = 1.0


async def cure(stack: Stack, strength: Strength) -> None:
    """Add workers."""
    while stack.standbys:
        await stack.open_standby()


# Passes that cost mostly by the token: batching does not save the day. At 1 half of the capacity is used.
_HEAVY = tuple(
    replace(b, rate_per_s=rate, slack=0.05, model=replace(b.model, token_us=token_us, fixed_ms=2.0, rows_max=8))
    for b, rate, token_us in ((TEXTS, 35, 250), (ROWS, 60, 230))
)

SCENARIO = Scenario(
    cause="A6",
    mechanism="the rate of arrivals rises above the capacity",
    inject=inject,
    segments=("stream_wait", "batch_wait"),
    strength={"factor": Span(2.3, 2.8)},
    backgrounds=_HEAVY,
    cure=cure,
    cure_standbys=1,
)
