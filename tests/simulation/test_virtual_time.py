"""Time that passes only when nothing is left to do, and processes that stop, freeze and die in it."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from simulation.virtual_time import START_NS, Process, Stuck, VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    """A loop whose clock stands at its start."""
    loop = VirtualLoop()
    yield loop
    loop.close()


def _seconds(loop: VirtualLoop) -> float:
    return (loop.now_ns - START_NS) / 1e9


async def _work_for_ever(done: list[float], loop: VirtualLoop) -> None:
    while True:
        await asyncio.sleep(1.0)
        done.append(_seconds(loop))


def test_an_hour_is_over_at_once(loop: VirtualLoop) -> None:
    """Sleeping moves the clock, to the nanosecond."""

    async def sleep() -> float:
        await asyncio.sleep(3600)
        return _seconds(loop)

    assert loop.run_until_complete(sleep()) == 3600.0


def test_sleepers_wake_in_the_order_of_their_times(loop: VirtualLoop) -> None:
    """Whatever the order they fell asleep in; at equal times it is that order."""
    woken: list[str] = []

    async def sleep(seconds: float, name: str) -> None:
        await asyncio.sleep(seconds)
        woken.append(name)

    async def all_of_them() -> None:
        await asyncio.gather(sleep(2, "late"), sleep(1, "first"), sleep(1, "second"), sleep(0.5, "early"))

    loop.run_until_complete(all_of_them())
    assert woken == ["early", "first", "second", "late"]


def test_waiting_for_nothing_is_noticed(loop: VirtualLoop) -> None:
    """A deadlock is an error, not an endless wait."""

    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck):
        loop.run_until_complete(wait())


def test_a_timeout_strikes_in_virtual_time(loop: VirtualLoop) -> None:
    """asyncio's own timeouts work."""

    async def wait() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        return _seconds(loop)

    assert loop.run_until_complete(wait()) == 5.0


def test_a_thread_pools_work_takes_its_service_time(loop: VirtualLoop) -> None:
    """It is computed at once, and delivered when its time is over; its exception as well."""
    loop.service_time_s = lambda: 0.25

    async def compute(function: Callable[[], Any]) -> tuple[Any, float]:
        try:
            outcome = await loop.run_in_executor(None, function)
        except ZeroDivisionError as e:
            outcome = e
        return outcome, _seconds(loop)

    assert loop.run_until_complete(compute(lambda: 42)) == (42, 0.25)
    error, at_s = loop.run_until_complete(compute(lambda: 1 // 0))
    assert isinstance(error, ZeroDivisionError)
    assert at_s == 0.5


def test_a_frozen_process_does_what_is_due_when_it_thaws(loop: VirtualLoop) -> None:
    """Its timers run out meanwhile, as they do for a process that was stopped by a signal."""
    process, done = Process(loop, "p"), list[float]()
    process.start(_work_for_ever(done, loop))

    async def story() -> None:
        await asyncio.sleep(1.5)
        process.freeze()
        await asyncio.sleep(5)
        assert done == [1.0]
        process.thaw()
        await asyncio.sleep(1.1)
        process.kill()

    loop.run_until_complete(story())
    assert done == [1.0, 6.5, 7.5]


def test_a_killed_process_does_nothing_more(loop: VirtualLoop) -> None:
    """Nor does anything that it starts while it dies."""
    process, done = Process(loop, "p"), list[float]()

    async def die_hard() -> None:
        try:
            await _work_for_ever(done, loop)
        finally:
            asyncio.ensure_future(_work_for_ever(done, loop))  # noqa: RUF006  (it is to die, too)

    process.start(die_hard())

    async def story() -> None:
        await asyncio.sleep(2.5)
        process.kill()
        await asyncio.sleep(10)

    loop.run_until_complete(story())
    assert done == [1.0, 2.0]
    assert not process.tasks


def test_a_signal_reaches_the_process_that_handles_it(loop: VirtualLoop) -> None:
    """A handler belongs to the process that set it."""
    heard: list[str] = []

    async def listen(name: str) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, heard.append, name)

    one, other = Process(loop, "one"), Process(loop, "other")
    one.start(listen("one"))
    other.start(listen("other"))

    async def story() -> None:
        await asyncio.sleep(1)
        other.signal(signal.SIGTERM)
        await asyncio.sleep(1)

    loop.run_until_complete(story())
    assert heard == ["other"]
