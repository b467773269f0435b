"""B6: a thread of the process itself runs Python all the time, and everything else there waits for the interpreter.

In the worker where there is one worker, in the gateway where there are more.
"""

import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.lineup.inside import Inside
from bench.lineup.labels import Truth
from bench.lineup.mechanisms import blame
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.stack import Stack
from shared import clock

PERIOD_NS = 50_000_000


def spin(inside: Inside, *, duty: float) -> None:
    """Start the thread: busy for a share `duty` of each period."""
    stop = inside.state["stop"] = threading.Event()

    def work() -> None:
        while not stop.wait((1 - duty) * PERIOD_NS / 1e9):
            until_ns = clock.now_ns() + int(duty * PERIOD_NS)
            while clock.now_ns() < until_ns:
                sum(range(100))

    threading.Thread(target=work, daemon=True).start()


def rest(inside: Inside) -> None:
    """End the thread."""
    inside.state.pop("stop").set()


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    where = stack.workers[0] if len(stack.workers) == 1 else stack.gateway
    blame(truth, where)
    await where.call("spin", duty=strength["duty"])
    yield
    await where.call("rest")


SCENARIO = Scenario(
    cause="B6",
    mechanism="a thread of pure Python in the process",
    inject=inject,
    segments=("forward", "downlink", "post", "collate", "gw_wake", "gw_loop", "pre", "out_loop", "pull", "deliver"),
    strength={"duty": Span(0.6, 0.9)},
)
