"""C4: shapes come that the kernels have no plan for; it is made while the request waits, and few plans are kept."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from bench.lineup.backgrounds import ROWS, TEXTS
from bench.lineup.inside import Inside
from bench.lineup.labels import Truth
from bench.lineup.mechanisms import everywhere
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.sizes import OneOf
from bench.lineup.stack import Stack

KNOWN = (16, 24, 32)
ODD = tuple(n for n in range(12, 72) if n not in KNOWN)
ODD_SHARE = 0.08


def try_often(inside: Inside, *, tries: int) -> None:
    """Before the run: how many ways are tried."""
    inside.model.tries = tries


async def prepare(stack: Stack, strength: Strength) -> None:
    await everywhere(stack, "try_often", tries=round(strength["tries"]))


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    def change(usual: int, other: float) -> tuple[int, bool]:
        return (ODD[int(other / ODD_SHARE * len(ODD))], True) if other < ODD_SHARE else (usual, False)

    stack.traffic.change = change
    yield
    stack.traffic.change = None


_TUNED = tuple(
    replace(
        b, mix=OneOf(KNOWN),
        model=replace(b.model, kind="padded", rows_max=4, extra={"tries": 1, "shapes": 16}),
    )
    for b in (TEXTS, ROWS)
)  # fmt: skip

SCENARIO = Scenario(
    cause="C4",
    mechanism="a kernel is chosen by trying at every new shape, and only the last shapes are remembered",
    inject=inject,
    prepare=prepare,
    segments=("forward", "stream_wait", "batch_wait"),
    strength={"tries": Span(4, 9)},
    backgrounds=_TUNED,
    model="_tuned.py:Tuned",
)
