"""A7: one worker takes far more ahead of its device than it can run, while the other has nothing to do."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from bench.arrivals import Arrivals
from bench.lineup.backgrounds import ROWS, TEXTS
from bench.lineup.inside import Inside
from bench.lineup.labels import Truth
from bench.lineup.mechanisms import blame
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.stack import Stack


def take_ahead(inside: Inside, *, depth: int) -> None:
    """From now on hold up to `depth` requests."""
    kind = type(inside.served)

    def want(self: Any) -> int:
        return max(0, depth - len(self.jobs))

    inside.state["want"], kind.want = kind.want, want


def take_as_usual(inside: Inside) -> None:
    """Stop that."""
    if "want" in inside.state:
        type(inside.served).want = inside.state.pop("want")


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    worker = rng.choice(stack.workers)
    blame(truth, worker)
    await worker.call("take_ahead", depth=round(strength["depth"]))
    yield
    await worker.call("take_as_usual")


async def cure(stack: Stack, strength: Strength) -> None:
    """Let it take no more than its next batch."""
    for worker in stack.workers:
        await worker.call("take_as_usual")


# Bursts, so that there is something to be taken; small batches, so that it takes its time.
_BURSTS = tuple(
    replace(
        b, name=f"{b.name}2", workers=2, rate_per_s=rate, arrivals=Arrivals.BURSTY, burst_mean=8.0,
        model=replace(b.model, fixed_ms=10.0, token_us=60.0, rows_max=2),
    )
    for b, rate in ((TEXTS, 45), (ROWS, 50))
)  # fmt: skip

SCENARIO = Scenario(
    cause="A7",
    mechanism="one of two workers prefetches far more than a batch",
    inject=inject,
    segments=("batch_wait",),
    strength={"depth": Span(24, 96)},
    backgrounds=_BURSTS,
    cure=cure,
)
