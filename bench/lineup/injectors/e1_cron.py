"""E1: a job that is due at fixed times of the wall clock takes all cores for a moment."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.lineup.labels import Truth
from bench.lineup.mechanisms import be_idle, beats, spin_beside, stop_beside
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.stack import Stack
from shared import clock

__all__ = ["SCENARIO", "be_idle", "spin_beside", "stop_beside"]
GRID_S = 5


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    helper = stack.helpers[0]

    async def job() -> None:
        truth.started_unix_us = truth.started_unix_us or clock.wall_us()
        await helper.call("spin_beside", count=round(strength["count"]), duty=1.0)
        try:
            await asyncio.sleep(strength["job_s"])
        finally:
            await helper.call("stop_beside")

    await asyncio.sleep(GRID_S - clock.wall_us() / 1e6 % GRID_S)
    async with beats(rng, truth, job, period_s=GRID_S):
        yield


async def cure(stack: Stack, strength: Strength) -> None:
    """Run the job when nobody else wants the cores."""
    await stack.helpers[0].call("be_idle")


SCENARIO = Scenario(
    cause="E1",
    mechanism="a job on all cores at every fifth second of the wall clock",
    inject=inject,
    cure=cure,
    segments=("forward", "stream_wait", "batch_wait", "dispatch", "collate", "deliver", "downlink"),
    strength={"job_s": Span(0.6, 1.0), "count": Span(8, 14)},
    helpers=1,
)
