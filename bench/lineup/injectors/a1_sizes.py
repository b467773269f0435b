"""A1: some requests are long, honestly so, and take their time. Nothing is wrong with the system."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from bench.lineup.backgrounds import ROWS, TEXTS
from bench.lineup.labels import Truth
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.sizes import Constant
from bench.lineup.stack import Stack

LONG_SHARE = 0.05


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    tokens = round(strength["tokens"])
    stack.traffic.change = lambda usual, other: (tokens, True) if other < LONG_SHARE else (usual, False)
    yield
    stack.traffic.change = None


# Little load, so that the long requests are slow by themselves and hardly stand in anybody's way.
_CALM = (
    replace(TEXTS, mix=Constant(24), rate_per_s=25),
    replace(ROWS, mix=Constant(24), rate_per_s=35, model=replace(TEXTS.model, token_us=60)),
)

SCENARIO = Scenario(
    cause="A1",
    mechanism="five in a hundred requests are many times as long as the others",
    inject=inject,
    segments=("forward", "stream_wait", "batch_wait"),
    strength={"tokens": Span(350, 900)},
    backgrounds=_CALM,
)
