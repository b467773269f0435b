"""H3: one of two workers is slow in everything it does; the other is as ever."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from bench.lineup.backgrounds import ROWS, TEXTS
from bench.lineup.labels import Truth
from bench.lineup.mechanisms import blame, full_speed, slow_down
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.stack import Stack

__all__ = ["SCENARIO", "full_speed", "slow_down"]


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    worker = rng.choice(stack.workers)
    blame(truth, worker)
    await worker.call("slow_down", factor=strength["factor"])
    yield
    await worker.call("full_speed")


SCENARIO = Scenario(
    cause="H3",
    mechanism="every step of one worker needs more CPU time by one factor",
    inject=inject,
    segments=("forward", "batch_wait", "stream_wait", "collate"),
    strength={"factor": Span(3.0, 6.0)},
    backgrounds=(replace(TEXTS, name="texts2", workers=2, rate_per_s=50), ROWS),
)
