"""The door: a rate is asked for only where there is one, and a Redis that is silent holds nobody up."""

import asyncio
from typing import Any

import pytest

from gateway import door as module
from gateway.door import Door
from gateway.tenants import ANYONE, Tenant, Tenants
from shared.broker.connection import NotConnected
from shared.errors import ErrorKind, TailraceError

FAST = Tenant("fast", rate_per_s=3, burst=2)


class Redis:
    """Answers every command with one thing, or never."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.commands: list[tuple[Any, ...]] = []

    def call(self, *command: Any, in_place: bool = False) -> "asyncio.Future[Any]":
        self.commands.append(command)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if isinstance(self.answer, Exception):
            future.set_exception(self.answer)
        elif self.answer is not None:
            future.set_result(self.answer)
        return future


def door(redis: Redis) -> Door:
    return Door(Tenants(), redis)  # type: ignore[arg-type]


async def test_a_tenant_without_a_rate_costs_no_call() -> None:
    """Neither does anyone."""
    redis = Redis(b"0")
    assert await door(redis).enter({}) is ANYONE
    assert await door(redis).enter({"x-tenant": "shop"}) == Tenant("shop")
    assert redis.commands == []


async def test_a_rate_is_a_time_between_requests_and_a_burst() -> None:
    """Of this tenant over all models."""
    redis = Redis(b"0")
    await door(redis).pace(FAST)
    ((_, _, keys, key, *args),) = redis.commands
    assert (keys, key, args) == (1, "tailrace:{fleet}:rate:fast", [333_334, 2, 1])


@pytest.mark.parametrize(("wait_us", "after_s"), [(1, 1), (999_999, 1), (1_000_001, 2), (60_000_000, 60)])
async def test_too_fast_is_refused_with_whole_seconds_rounded_up(wait_us: int, after_s: int) -> None:
    """In the header and in the text, beside the rate."""
    with pytest.raises(TailraceError) as refused:
        await door(Redis(str(wait_us).encode())).pace(FAST)
    assert refused.value.kind is ErrorKind.RATE_LIMITED
    assert refused.value.retry_after_s == after_s
    assert f"3 requests a second, in bursts of up to 2, and has; retry after {after_s} s" in refused.value.message


@pytest.mark.parametrize("answer", [None, NotConnected("no connection")])
async def test_without_redis_a_request_goes_on_to_its_hand_over(
    answer: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which waits for Redis up to the request's deadline; here nobody waits for long."""
    monkeypatch.setattr(module, "THROTTLE_S", 0.01)
    await door(Redis(answer)).pace(FAST)
