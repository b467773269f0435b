"""C2: the limit of recompilations is reached, and what is new runs uncompiled from then on, without a word."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from bench.lineup.backgrounds import ROWS, TEXTS
from bench.lineup.labels import Truth
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.sizes import OneOf
from bench.lineup.stack import Stack

KNOWN = (16, 24, 32)
NEW = (18, 20, 22, 26, 28, 30)


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    share = strength["new_share"]

    def change(usual: int, other: float) -> tuple[int, bool]:
        return (NEW[int(other / share * len(NEW))], True) if other < share else (usual, False)

    stack.traffic.change = change
    yield
    stack.traffic.change = None


# Nine graphs are there from the start: three sizes of batches of three lengths. Two more are compiled, then no more.
_COMPILED = tuple(
    replace(
        b, mix=OneOf(KNOWN),
        model=replace(
            b.model, kind="padded", rows_max=4, warm_up_rows=1,
            extra={"compile_ms": 80, "recompile_limit": 11, "repeats": 4, "known": KNOWN},
        ),
    )
    for b in (TEXTS, ROWS)
)  # fmt: skip

SCENARIO = Scenario(
    cause="C2",
    mechanism="torch.compile's recompile_limit, met by requests of new lengths, which then run four times the work",
    inject=inject,
    segments=("forward", "stream_wait", "batch_wait"),
    strength={"new_share": Span(0.15, 0.4)},
    backgrounds=_COMPILED,
    model="_compiled.py:Compiled",
)
