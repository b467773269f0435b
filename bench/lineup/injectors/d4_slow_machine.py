"""D4: everything takes longer by the same factor, as on a host that is hot or was promised less power."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.lineup.inside import Inside
from bench.lineup.labels import Truth
from bench.lineup.mechanisms import blame, burn, everywhere, full_speed, slow_down
from bench.lineup.scenario import Impact, Scenario, Span, Strength
from bench.lineup.stack import Stack

__all__ = ["SCENARIO", "full_speed", "slow_down"]
HANDLER_NS = 250_000
"""What a request takes of the gateway by itself, before its answer is rendered."""


def slow_handlers(inside: Inside, *, factor: float) -> None:
    """The gateway's share of it; 1 ends it."""
    inside.before_request.clear()
    if factor > 1:
        inside.before_request.append(lambda: burn(int((factor - 1) * HANDLER_NS)))


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    blame(truth, *stack.workers)
    await stack.gateway.call("slow_handlers", factor=strength["factor"])
    await everywhere(stack, "slow_down", factor=strength["factor"])
    yield
    await everywhere(stack, "full_speed")
    await stack.gateway.call("slow_handlers", factor=1)


SCENARIO = Scenario(
    cause="D4",
    mechanism="every step of all workers, and of the handlers, needs more CPU time by one factor",
    inject=inject,
    segments=("forward", "stream_wait", "batch_wait", "collate"),
    strength={"factor": Span(1.6, 2.6)},
    impact=Impact.P50,
)
