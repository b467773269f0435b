"""B5: the pool of threads that runs the passes is held by something that only waits."""

import random
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from bench.lineup.inside import Inside
from bench.lineup.labels import Truth
from bench.lineup.mechanisms import beats, blame, everywhere
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.stack import Stack


def hold_the_pool(inside: Inside, *, ms: float) -> None:
    """Give the device's pool something to wait for, as a model that shares it with its own downloads would."""
    inside.state.get("pool", inside.worker._executor).submit(time.sleep, ms / 1000)


def have_a_pool_of_its_own(inside: Inside) -> None:
    """Passes go on in the device's pool, what only waits gets another one."""
    inside.state["pool"] = ThreadPoolExecutor(2)


async def cure(stack: Stack, strength: Strength) -> None:
    """Give blocking work a pool of its own."""
    await everywhere(stack, "have_a_pool_of_its_own")


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    blame(truth, *stack.workers)

    async def wait() -> None:
        await everywhere(stack, "hold_the_pool", ms=strength["ms"])

    async with beats(rng, truth, wait, period_s=strength["period_s"], jitter=0.4):
        yield


SCENARIO = Scenario(
    cause="B5",
    mechanism="sleeps in the thread pool of the device",
    inject=inject,
    segments=("dispatch", "stream_wait", "batch_wait"),
    cure=cure,
    strength={"ms": Span(100, 260), "period_s": Span(1.8, 1.3)},
)
