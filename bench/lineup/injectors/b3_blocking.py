"""B3: a handler of the gateway blocks its event loop: every so many requests do something slow without a thread."""

import random
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from bench.lineup.inside import Inside
from bench.lineup.labels import Truth
from bench.lineup.mechanisms import blame
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.stack import Stack


def begin(inside: Inside, *, every: int, ms: float) -> None:
    """Every so many requests sleep on the loop, as a call to a service with a blocking client does."""
    seen = 0

    def handler() -> None:
        nonlocal seen
        seen += 1
        if seen % every == 1:
            time.sleep(ms / 1000)

    inside.before_request.append(handler)


def use_a_thread(inside: Inside) -> None:
    """The same slow calls, each in a thread."""
    handlers = list(inside.before_request)
    pool = ThreadPoolExecutor(4)

    def in_a_thread() -> None:
        for handler in handlers:
            pool.submit(handler)

    inside.before_request[:] = [in_a_thread]


def end(inside: Inside) -> None:
    """Stop that."""
    inside.before_request.clear()


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    blame(truth, stack.gateway)
    await stack.gateway.call("begin", every=round(strength["every"]), ms=strength["stall_ms"])
    yield
    await stack.gateway.call("end")


async def cure(stack: Stack, strength: Strength) -> None:
    """Move the blocking call to a thread."""
    await stack.gateway.call("use_a_thread")


SCENARIO = Scenario(
    cause="B3",
    mechanism="a blocking call in the handler, every so many requests",
    inject=inject,
    segments=("pre", "downlink", "gw_loop", "gw_wake", "recv", "render"),
    cure=cure,
    strength={"stall_ms": Span(80, 250), "every": Span(70, 50)},
)
