"""Decoy: a worker is replaced by a new one that is warm, and nobody notices."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.lineup.labels import Truth
from bench.lineup.scenario import DECOY, Impact, Scenario, Strength
from bench.lineup.stack import Stack


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    oldest = stack.workers[0]
    await stack.open_standby()
    await stack.retire(oldest)
    yield


SCENARIO = Scenario(
    cause=DECOY,
    mechanism="a deployment that does no harm",
    inject=inject,
    impact=Impact.NONE,
    lookalikes=("C3", "C7", "G1", "G2"),
    standbys=1,
    supervised=False,
)
