"""Waiting for something that another process does: as long as it takes, within a deadline that only a defect meets."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from shared import clock

DEADLINE_S = 60.0
_LOOK_AGAIN_S = 0.005

T = TypeVar("T")


def soon(awaitable: Awaitable[T]) -> Awaitable[T]:
    """Await something that happens at once unless it is broken."""
    return asyncio.wait_for(awaitable, DEADLINE_S)


async def eventually(condition: Callable[[], object | Awaitable[object]], what: str) -> None:
    """Return once `condition` holds. Raises TimeoutError saying `what` did not come true."""
    until_ns = clock.now_ns() + int(DEADLINE_S * 1e9)
    while clock.now_ns() < until_ns:
        holds = condition()
        if inspect.isawaitable(holds):
            holds = await holds
        if holds:
            return
        await asyncio.sleep(_LOOK_AGAIN_S)
    raise TimeoutError(f"not within {DEADLINE_S:.0f} s: {what}")


def eventually_blocking(condition: Callable[[], object], what: str) -> None:
    """The same for a test without an event loop."""
    until_ns = clock.now_ns() + int(DEADLINE_S * 1e9)
    while clock.now_ns() < until_ns:
        if condition():
            return
        time.sleep(_LOOK_AGAIN_S)
    raise TimeoutError(f"not within {DEADLINE_S:.0f} s: {what}")
