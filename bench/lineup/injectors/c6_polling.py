"""C6: a worker that looks for work now and then instead of waiting for it."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.lineup.inside import Inside
from bench.lineup.labels import Truth
from bench.lineup.mechanisms import blame, everywhere
from bench.lineup.scenario import Impact, Scenario, Span, Strength
from bench.lineup.stack import Stack


def poll(inside: Inside, *, ms: float) -> None:
    """From the next idle moment on: sleep, look, sleep, look."""
    worker, puller = inside.worker, inside.worker.puller

    async def look_now_and_then() -> None:
        await asyncio.sleep(ms / 1000)
        await puller._fetch(list(worker.served.values()))

    puller._wait_idle = look_now_and_then


def wait(inside: Inside) -> None:
    """Block in Redis again."""
    vars(inside.worker.puller).pop("_wait_idle", None)


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    blame(truth, *stack.workers)
    await everywhere(stack, "poll", ms=strength["poll_ms"])
    yield
    await everywhere(stack, "wait")


async def cure(stack: Stack, strength: Strength) -> None:
    """Let the workers block on the stream."""
    await everywhere(stack, "wait")


SCENARIO = Scenario(
    cause="C6",
    mechanism="polling with a sleep instead of a blocking read",
    inject=inject,
    segments=("stream_wait", "deliver"),
    strength={"poll_ms": Span(30, 90)},
    impact=Impact.P50,
    cure=cure,
)
