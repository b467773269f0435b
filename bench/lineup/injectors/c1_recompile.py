"""C1: requests of new lengths come, and the model is compiled anew for each shape that it has not met."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from bench.lineup.backgrounds import ROWS, TEXTS
from bench.lineup.inside import Inside
from bench.lineup.labels import Truth
from bench.lineup.mechanisms import beats, everywhere
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.sizes import OneOf
from bench.lineup.stack import Stack

KNOWN = (16, 24, 32)
NEW_SHARE = 0.15


def compile_for(inside: Inside, *, ms: float) -> None:
    """Before the run: how long a compilation takes."""
    inside.model._compile_ms = ms


async def prepare(stack: Stack, strength: Strength) -> None:
    await everywhere(stack, "compile_for", ms=strength["compile_ms"])


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    lengths = [n for n in range(17, 40) if n not in KNOWN]
    rng.shuffle(lengths)
    new = lengths[0]

    async def another() -> None:
        nonlocal new
        new = lengths.pop()
        await asyncio.sleep(0)

    stack.traffic.change = lambda usual, other: (new, True) if other < NEW_SHARE else (usual, False)
    async with beats(rng, truth, another, period_s=strength["period_s"], jitter=0.2):
        yield
    stack.traffic.change = None


_COMPILED = tuple(
    replace(
        b, mix=OneOf(KNOWN),
        model=replace(
            b.model, kind="padded", rows_max=4, warm_up_rows=1,
            extra={"compile_ms": 0, "recompile_limit": 1000, "repeats": 1, "known": KNOWN},
        ),
    )
    for b in (TEXTS, ROWS)
)  # fmt: skip

SCENARIO = Scenario(
    cause="C1",
    mechanism="torch.compile(dynamic=False) with a compiler of known slowness, and a new length every few seconds",
    inject=inject,
    prepare=prepare,
    segments=("forward", "stream_wait", "batch_wait"),
    strength={"compile_ms": Span(150, 450), "period_s": Span(3.5, 2.5)},
    backgrounds=_COMPILED,
    model="_compiled.py:Compiled",
)
