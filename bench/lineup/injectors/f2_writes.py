"""F2: Redis takes no writes for a moment, again and again, as while the disk syncs its log of them; reads go on."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.lineup.labels import Truth
from bench.lineup.mechanisms import beats
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.stack import Stack


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    truth.culprit_kind = "redis"
    async with stack.admin() as admin:

        async def pause() -> None:
            await admin.call("CLIENT", "PAUSE", round(strength["stall_ms"]), "WRITE")
            await asyncio.sleep(strength["stall_ms"] / 1000)

        async with beats(rng, truth, pause, period_s=strength["period_s"], jitter=0.3):
            yield


SCENARIO = Scenario(
    cause="F2",
    mechanism="CLIENT PAUSE ... WRITE for the length of a slow fsync, about every two seconds",
    inject=inject,
    segments=("uplink", "downlink", "deliver", "stream_wait"),
    strength={"stall_ms": Span(90, 260), "period_s": Span(2.4, 1.8)},
)
