"""Clean: a setting is changed that has nothing to do with speed."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.lineup.labels import Truth
from bench.lineup.mechanisms import everywhere, note_config
from bench.lineup.scenario import CLEAN, Impact, Scenario, Strength
from bench.lineup.stack import Stack

__all__ = ["SCENARIO", "note_config"]


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    await everywhere(stack, "note_config", drain_s=rng.choice([10.0, 20.0, 45.0]))
    yield


SCENARIO = Scenario(cause=CLEAN, mechanism="another drain_s, told in the log", inject=inject, impact=Impact.NONE)
