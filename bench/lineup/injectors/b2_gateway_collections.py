"""B2: full garbage collections in the gateway, over many live objects, every so many requests."""

import gc
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.lineup.inside import Inside
from bench.lineup.labels import Truth
from bench.lineup.mechanisms import Collector, blame, hold_objects
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.stack import Stack

__all__ = ["SCENARIO", "hold_objects"]


def begin(inside: Inside, *, every: int) -> None:
    """From now on the cache counts, and every so many requests there is a full collection."""
    gc.unfreeze()
    inside.before_request.append(Collector(every))


def end(inside: Inside) -> None:
    """Stop that."""
    inside.before_request.clear()
    gc.freeze()


async def prepare(stack: Stack, strength: Strength) -> None:
    await stack.gateway.call("hold_objects", objects=round(strength["objects"]))


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    blame(truth, stack.gateway)
    await stack.gateway.call("begin", every=round(strength["every"]))
    yield
    await stack.gateway.call("end")


SCENARIO = Scenario(
    cause="B2",
    mechanism="gc.collect() every so many requests over a cache of objects in the gateway",
    inject=inject,
    prepare=prepare,
    segments=("downlink", "pre", "gw_loop", "gw_wake", "recv", "render"),
    strength={"objects": Span(500_000, 1_400_000), "every": Span(70, 50)},
)
