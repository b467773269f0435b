"""G1: a worker dies in the middle of a batch (SIGKILL), and what it held is delivered again to others."""

import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from bench.lineup.backgrounds import ROWS, TEXTS
from bench.lineup.inside import Inside
from bench.lineup.labels import Truth
from bench.lineup.mechanisms import beats
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.stack import Stack


def die_in_the_next_pass(inside: Inside) -> None:
    """The next batch ends this process, as a fault in a native library would."""

    def crash(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    inside.model.forward = crash


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    truth.culprit_kind = "worker"

    async def crash() -> None:
        worker = rng.choice([w for w in stack.workers if w.is_alive])
        truth.culprit_ids.append(str(worker.pid))
        truth.processes.append(str(worker.pid))
        await worker.call("die_in_the_next_pass")

    async with beats(rng, truth, crash, period_s=strength["period_s"], jitter=0.15):
        yield


# Two workers, so that there is somebody to go on; passes long enough to have several requests in them.
_TWO = tuple(
    replace(b, name=f"{b.name}2", workers=2, rate_per_s=40, model=replace(b.model, fixed_ms=25.0, token_us=40.0))
    for b in (TEXTS, ROWS)
)

SCENARIO = Scenario(
    cause="G1",
    mechanism="SIGKILL of a worker in the middle of a pass",
    inject=inject,
    segments=("lost_attempt", "stream_wait"),
    strength={"period_s": Span(8.0, 5.0)},
    backgrounds=_TWO,
)
