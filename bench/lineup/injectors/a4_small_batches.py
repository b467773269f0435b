"""A4: batches of one, of a model whose passes cost mostly by the pass: the workers are hardly fast enough any more."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from bench.lineup.backgrounds import ROWS, TEXTS
from bench.lineup.inside import Inside
from bench.lineup.labels import Truth
from bench.lineup.mechanisms import everywhere
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.stack import Stack


def limit_rows(inside: Inside, *, rows: int) -> None:
    """Let batches have so many rows at most."""
    inside.on_loop(lambda: inside.change_limits(rows_max=rows))


def add_work(inside: Inside, *, factor: float) -> None:
    """Before the run: make each pass cost a little more or less, so that the strength can be chosen."""
    inside.model.fixed_repeats = round(inside.model.fixed_repeats * factor)


async def prepare(stack: Stack, strength: Strength) -> None:
    await everywhere(stack, "add_work", factor=strength["work"])


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    await everywhere(stack, "limit_rows", rows=1)
    yield
    await everywhere(stack, "limit_rows", rows=16)


async def cure(stack: Stack, strength: Strength) -> None:
    """Raise `max_batch_size`."""
    await everywhere(stack, "limit_rows", rows=16)


# One by one, 95 % of what is possible at work = 1.
_BY_THE_PASS = tuple(
    replace(b, rate_per_s=rate, slack=0.02, model=replace(b.model, kind="packed", fixed_ms=fixed_ms, token_us=12.0))
    for b, rate, fixed_ms in ((TEXTS, 55, 15.5), (ROWS, 60, 29.0))
)

SCENARIO = Scenario(
    cause="A4",
    mechanism="the limit of rows falls to one at a rate that needs batches",
    inject=inject,
    prepare=prepare,
    segments=("stream_wait", "batch_wait"),
    strength={"work": Span(0.97, 1.08)},
    backgrounds=_BY_THE_PASS,
    cure=cure,
)
