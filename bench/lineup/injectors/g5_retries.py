"""G5: a stall of a few seconds makes clients try again, and their repetitions keep the system down when it is over.

The clients have a limit of their own and let the first try run on: their connection does not say that they gave up.
"""

import asyncio
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from bench.lineup.backgrounds import ROWS, TEXTS
from bench.lineup.clients import Patience
from bench.lineup.labels import Truth
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.stack import Stack

TIMEOUT_S = 0.4


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    stack.clients.patience = Patience(TIMEOUT_S, round(strength["tries"]))
    for worker in stack.workers:
        worker.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(strength["stall_s"])
    finally:
        for worker in stack.workers:
            worker.signal(signal.SIGCONT)
    yield
    stack.clients.patience = None


async def cure(stack: Stack, strength: Strength) -> None:
    """A retry budget: none while nothing is answered in time."""
    stack.clients.patience = Patience(TIMEOUT_S, 1)


# Four tenths of the capacity, and hardly anything is gained by batching: three tries of each are too many.
_HALF = tuple(
    replace(
        b, rate_per_s=rate, slack=0.05, model=replace(b.model, kind="packed", fixed_ms=1.0, token_us=250, rows_max=8)
    )
    for b, rate in ((TEXTS, 35), (ROWS, 80))
)

SCENARIO = Scenario(
    cause="G5",
    mechanism="a stall, and clients that try again without a pause while the first try runs on",
    inject=inject,
    segments=("stream_wait", "batch_wait"),
    strength={"tries": Span(3, 4), "stall_s": Span(1.5, 2.5)},
    backgrounds=_HALF,
    cure=cure,
)
