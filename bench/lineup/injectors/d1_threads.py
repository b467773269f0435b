"""D1: more torch threads than cores, which spin at every barrier while they wait for each other."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.lineup.inside import Inside
from bench.lineup.labels import Truth
from bench.lineup.mechanisms import blame, everywhere
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.stack import Stack


def use_threads(inside: Inside, *, count: int) -> None:
    """Let the passes use so many threads from the next one on, as a library does that sets them for everybody."""
    import torch

    collate = type(inside.model).collate

    def set_and_collate(requests: Any) -> Any:
        # In the device's own thread, whose number it is.
        torch.set_num_threads(count)
        return collate(inside.model, requests)

    inside.model.collate = set_and_collate


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    blame(truth, *stack.workers)
    await everywhere(stack, "use_threads", count=round(strength["threads"]))
    yield
    await everywhere(stack, "use_threads", count=1)


async def cure(stack: Stack, strength: Strength) -> None:
    """As many threads as a worker has cores."""
    await everywhere(stack, "use_threads", count=1)


SCENARIO = Scenario(
    cause="D1",
    mechanism="torch.set_num_threads above the number of cores, with OpenMP's active waiting",
    inject=inject,
    cure=cure,
    segments=("forward", "stream_wait", "batch_wait"),
    strength={"threads": Span(3, 5)},
    # Threads wait actively for some milliseconds and not for ever: the machine must come to rest when it is over.
    worker_environment={"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "1000000"},
)
