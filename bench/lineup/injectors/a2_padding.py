"""A2: short requests share their batches with long ones, and are padded to their length.

The model pads but does not say so (`pads` in model.toml), so nobody keeps like with like.
"""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from bench.lineup.backgrounds import ROWS, TEXTS
from bench.lineup.labels import Truth
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.sizes import Constant
from bench.lineup.stack import Stack


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    truth.culprit_kind = "request"
    tokens, share = round(strength["tokens"]), strength["long_share"]
    stack.traffic.change = lambda usual, other: (tokens, True) if other < share else (usual, False)
    yield
    stack.traffic.change = None


# Passes that cost by the pass, so that batches have several members to be padded.
_BATCHED = tuple(
    replace(b, mix=Constant(16), rate_per_s=rate, model=replace(b.model, kind="padded", fixed_ms=16.0, token_us=50.0))
    for b, rate in ((TEXTS, 45), (ROWS, 80))
)

SCENARIO = Scenario(
    cause="A2",
    mechanism="some requests are long, and a model that pads does not say that it does",
    inject=inject,
    segments=("forward", "stream_wait", "batch_wait"),
    strength={"tokens": Span(160, 280), "long_share": Span(0.10, 0.14)},
    backgrounds=_BATCHED,
)
