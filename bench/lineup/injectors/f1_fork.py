"""F1: Redis stands still while it forks for a snapshot.

It really forks (BGSAVE), and stands still (SIGSTOP) for as long as the page tables of a large data set would take.
"""

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.lineup.labels import Truth
from bench.lineup.mechanisms import beats
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.stack import Stack
from shared.broker.connection import BrokerError


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    truth.culprit_kind = "redis"
    server = stack.redis.process
    assert server is not None
    async with stack.admin() as admin:

        async def fork() -> None:
            try:
                await admin.call("BGSAVE")
            except BrokerError:
                pass  # the snapshot before has not ended: this time it only stands still
            server.send_signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(strength["stall_ms"] / 1000)
            finally:
                server.send_signal(signal.SIGCONT)

        async with beats(rng, truth, fork, period_s=strength["period_s"]):
            yield


SCENARIO = Scenario(
    cause="F1",
    mechanism="BGSAVE, and SIGSTOP for as long as a large fork takes",
    inject=inject,
    segments=("uplink", "downlink", "deliver", "stream_wait"),
    strength={"stall_ms": Span(90, 280), "period_s": Span(4.0, 3.0)},
)
