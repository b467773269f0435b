"""C3: workers are replaced by new ones one after the other, and the first passes of each are slow: nothing is warm.

The new ones have been started before and wait, so that their start does not take the cores from the others.
"""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from bench.lineup.backgrounds import ROWS, TEXTS
from bench.lineup.labels import Truth
from bench.lineup.mechanisms import beats
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.stack import Stack

STANDBYS = 4


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    truth.culprit_kind = "worker"

    async def replace_one() -> None:
        if not stack.standbys:
            return
        oldest = stack.workers[0]
        new = await stack.open_standby()
        truth.culprit_ids.append(str(new.pid))
        truth.processes.append(str(new.pid))
        await stack.retire(oldest)

    async with beats(rng, truth, replace_one, period_s=strength["period_s"]):
        yield


_COLD = tuple(
    replace(b, model=replace(b.model, warm_up_rows=0, extra={"cold_ms": 350}))
    for b in (TEXTS, replace(ROWS, workers=2))
)

SCENARIO = Scenario(
    cause="C3",
    mechanism="workers are replaced one by one, and prepare themselves in their first passes",
    inject=inject,
    segments=("forward", "stream_wait", "batch_wait"),
    strength={"period_s": Span(5.5, 4.0)},
    backgrounds=_COLD,
    model="_lazy.py:Lazy",
    standbys=STANDBYS,
    supervised=False,
)
