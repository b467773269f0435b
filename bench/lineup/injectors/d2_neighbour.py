"""D2: other processes on the machine want the same cores."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.lineup.labels import Truth
from bench.lineup.mechanisms import spin_beside, stop_beside
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.stack import Stack

__all__ = ["SCENARIO", "spin_beside", "stop_beside"]


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    await stack.helpers[0].call("spin_beside", count=round(strength["count"]), duty=strength["duty"])
    yield
    await stack.helpers[0].call("stop_beside")


async def cure(stack: Stack, strength: Strength) -> None:
    """Move the neighbour."""
    await stack.helpers[0].call("stop_beside")


SCENARIO = Scenario(
    cause="D2",
    mechanism="busy processes pinned to every core",
    inject=inject,
    cure=cure,
    segments=("forward", "stream_wait", "batch_wait", "dispatch", "collate", "deliver", "downlink"),
    strength={"count": Span(3, 6), "duty": Span(0.8, 0.98)},
    helpers=1,
)
