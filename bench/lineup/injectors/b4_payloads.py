"""B4: a few requests have bodies of megabytes, of which the model uses the beginning: parsing them takes the time."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from bench.lineup.backgrounds import ROWS, TEXTS
from bench.lineup.labels import Truth
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.stack import Stack

LARGE_SHARE = 0.04


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    truth.culprit_kind = "request"
    tokens = round(strength["tokens"])
    stack.traffic.make_ready(tokens)
    stack.traffic.change = lambda usual, other: (tokens, True) if other < LARGE_SHARE else (usual, False)
    yield
    stack.traffic.change = None


SCENARIO = Scenario(
    cause="B4",
    mechanism="four in a hundred bodies have megabytes of JSON, which the model cuts off",
    inject=inject,
    segments=("pre", "recv", "downlink", "pull", "gw_wake", "gw_loop", "uplink", "deliver"),
    strength={"tokens": Span(120_000, 500_000)},
    backgrounds=tuple(replace(b, model=replace(b.model, tokens_max=64)) for b in (TEXTS, ROWS)),
)
