"""A3: batches wait for company far too long, from one moment on, as after a change of the model's settings."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.lineup.inside import Inside
from bench.lineup.labels import Truth
from bench.lineup.mechanisms import everywhere
from bench.lineup.scenario import Impact, Scenario, Span, Strength
from bench.lineup.stack import Stack


def linger(inside: Inside, *, ms: float) -> None:
    """Let unfilled batches wait so long."""
    inside.on_loop(lambda: inside.change_limits(linger_ns=int(ms * 1e6)))


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    await everywhere(stack, "linger", ms=strength["linger_ms"])
    yield
    await everywhere(stack, "linger", ms=0)


async def cure(stack: Stack, strength: Strength) -> None:
    """Begin at once when the device is free."""
    await everywhere(stack, "linger", ms=0)


SCENARIO = Scenario(
    cause="A3",
    mechanism="the linger of the batching limits is raised",
    inject=inject,
    segments=("batch_wait",),
    strength={"linger_ms": Span(15, 45)},
    impact=Impact.P50,
    cure=cure,
)
