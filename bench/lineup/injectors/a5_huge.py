"""A5: now and then a huge request, and everybody behind it waits."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from bench.lineup.backgrounds import ROWS, TEXTS
from bench.lineup.labels import Truth
from bench.lineup.mechanisms import beats
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.stack import Stack
from shared import clock


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    truth.culprit_kind = "request"
    tokens = round(strength["tokens"])

    async def ask() -> None:
        # One for each worker: an idle one would take what comes behind.
        for _ in stack.workers:
            request = stack.traffic.request(tokens, special=True)
            truth.request_labels.append(stack.traffic.sent[id(request.message)].label)
            stack.clients.send(request, clock.now_ns())

    async with beats(rng, truth, ask, period_s=strength["period_s"], jitter=0.3):
        yield


SCENARIO = Scenario(
    cause="A5",
    mechanism="a request a hundred times as long as the others, every few seconds",
    inject=inject,
    segments=("stream_wait", "batch_wait"),
    strength={"tokens": Span(2200, 4000), "period_s": Span(4.5, 3.5)},
    backgrounds=(TEXTS, replace(ROWS, model=replace(ROWS.model, kind="packed"))),
)
