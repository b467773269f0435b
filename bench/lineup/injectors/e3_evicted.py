"""E3: the pages of the weights leave the page cache now and then, and have to be read from the disk again."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from bench.lineup.backgrounds import ROWS, TEXTS
from bench.lineup.inside import Inside
from bench.lineup.labels import Truth
from bench.lineup.mechanisms import beats, blame, everywhere
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.stack import Stack

MAPPED_MB = 64


def evict(inside: Inside) -> None:
    """Once."""
    inside.model.evict()


def touch(inside: Inside, *, pages: int) -> None:
    """Before the run: how much of the weights a pass reads."""
    inside.model.touch(pages)


async def prepare(stack: Stack, strength: Strength) -> None:
    await everywhere(stack, "touch", pages=round(strength["pages"]))


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    blame(truth, *stack.workers)

    async def forget() -> None:
        await everywhere(stack, "evict")

    async with beats(rng, truth, forget, period_s=strength["period_s"], jitter=0.2):
        yield


SCENARIO = Scenario(
    cause="E3",
    mechanism="weights in a mapped file, which is dropped from the page cache",
    inject=inject,
    segments=("forward", "stream_wait", "batch_wait"),
    prepare=prepare,
    strength={"pages": Span(800, 2400), "period_s": Span(3.0, 1.8)},
    backgrounds=tuple(
        replace(b, model=replace(b.model, extra={"mapped_mb": MAPPED_MB, "touched": 1000})) for b in (TEXTS, ROWS)
    ),
    model="_mapped.py:Mapped",
)
