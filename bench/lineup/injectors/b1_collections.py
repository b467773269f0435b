"""B1: full garbage collections in the workers, over many live objects, every so many passes.

As where a model keeps a large cache of Python objects, and a library calls `gc.collect()` now and then to be tidy.
"""

import gc
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.lineup.inside import Inside
from bench.lineup.labels import Truth
from bench.lineup.mechanisms import Collector, blame, everywhere, hold_objects
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.stack import Stack

__all__ = ["SCENARIO", "hold_objects"]


def begin(inside: Inside, *, every: int) -> None:
    """From now on the cache counts, and every so many passes are followed by a full collection."""
    gc.unfreeze()
    split, tidy = inside.model.split, Collector(every)

    def split_and_tidy(*arguments: Any) -> Any:
        tidy()
        return split(*arguments)

    inside.model.split = split_and_tidy


def end(inside: Inside) -> None:
    """Stop that."""
    del inside.model.split
    gc.freeze()


def freeze(inside: Inside) -> None:
    """Keep what is loaded out of collections, which go on."""
    gc.freeze()


async def cure(stack: Stack, strength: Strength) -> None:
    """Freeze what is loaded."""
    await everywhere(stack, "freeze")


async def prepare(stack: Stack, strength: Strength) -> None:
    await everywhere(stack, "hold_objects", objects=round(strength["objects"]))


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    blame(truth, *stack.workers)
    await everywhere(stack, "begin", every=round(strength["every"]))
    yield
    await everywhere(stack, "end")


SCENARIO = Scenario(
    cause="B1",
    mechanism="gc.collect() every so many passes over a cache of objects",
    inject=inject,
    prepare=prepare,
    cure=cure,
    segments=("post", "stream_wait", "batch_wait", "collate", "forward", "dispatch", "deliver"),
    strength={"objects": Span(400_000, 1_200_000), "every": Span(60, 40)},
)
