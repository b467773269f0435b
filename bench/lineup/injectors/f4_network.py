"""F4: the way between the workers and Redis takes longer, and not always the same time."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.lineup.labels import Truth
from bench.lineup.mechanisms import blame
from bench.lineup.scenario import Impact, Scenario, Span, Strength
from bench.lineup.stack import Stack

JITTER_SHARE = 0.5


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    blame(truth, *stack.workers)
    delay_ms, seed = strength["delay_ms"], rng.getrandbits(32)
    await stack.helpers[0].call("set_delay", delay_ms=delay_ms, jitter_ms=JITTER_SHARE * delay_ms, seed=seed)
    yield
    await stack.helpers[0].call("set_delay", delay_ms=0, jitter_ms=0, seed=0)


SCENARIO = Scenario(
    cause="F4",
    mechanism="a proxy between the workers and Redis delays every piece in both directions",
    inject=inject,
    segments=("deliver", "downlink", "stream_wait"),
    strength={"delay_ms": Span(5, 18)},
    impact=Impact.P50,
    proxied=True,
)
