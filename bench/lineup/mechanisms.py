"""What several scenarios use: schedules of episodes in the recorder, and things to do inside of a process."""

import asyncio
import dataclasses
import gc
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from bench.lineup.inside import Inside
from bench.lineup.labels import Truth
from bench.lineup.stack import Process, Stack
from shared import clock

SLICE_NS = 20_000_000
"""A neighbour that works part of the time works and rests within so long."""


# -- in the recorder --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def beats(
    rng: random.Random,
    truth: Truth,
    act: Callable[[], Awaitable[None]],
    *,
    period_s: float,
    jitter: float = 0.0,
) -> AsyncIterator[None]:
    """Do `act` at once and then every `period_s`, give or take a share `jitter` of it; each is an episode."""

    async def repeat() -> None:
        due_ns = clock.now_ns()
        while True:
            number = truth.begins()
            await act()
            truth.ends(number)
            due_ns += int(period_s * 1e9 * (1 + rng.uniform(-jitter, jitter)))
            await asyncio.sleep(max(0, due_ns - clock.now_ns()) / 1e9)

    truth.period_s = period_s if jitter < 0.1 else 0.0
    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        task.cancel()
        for result in await asyncio.gather(task, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


def blame(truth: Truth, *culprits: Process) -> None:
    """These processes are where it happens, and who is at fault."""
    truth.culprit_kind = culprits[0].role
    truth.culprit_ids = [str(process.pid) for process in culprits]
    truth.processes = list(truth.culprit_ids)


async def everywhere(stack: Stack, function: str, **arguments: Any) -> None:
    """Call a function of the scenario's file in all workers at once."""
    await asyncio.gather(*(worker.call(function, **arguments) for worker in stack.workers))


# -- inside of a process ----------------------------------------------------------------------------------------------


def burn(cpu_ns: int) -> None:
    """Keep the interpreter busy until this thread has used so much CPU time."""
    until_ns = clock.thread_cpu_ns() + cpu_ns
    while clock.thread_cpu_ns() < until_ns:
        sum(range(200))


def spin_beside(inside: Inside, *, count: int, duty: float) -> None:
    """In a helper: on every core `count` processes that work a share `duty` of the time, until `stop_beside`."""
    pids = inside.state.setdefault("beside", [])
    for core in sorted(os.sched_getaffinity(0)):
        for _ in range(count):
            if pid := os.fork():
                pids.append(pid)
            else:
                _spin(core, duty)


def stop_beside(inside: Inside) -> None:
    """In a helper: end what `spin_beside` began."""
    for pid in inside.state.pop("beside", []):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def be_idle(inside: Inside) -> None:
    """In a helper: what it begins from now on runs only when nobody else wants a core."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _spin(core: int, duty: float) -> None:
    """In a child: never returns. It ends with its parent, too (prctl PR_SET_PDEATHSIG)."""
    import ctypes
    import time

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    os.sched_setaffinity(0, {core})
    while True:
        began_ns = clock.now_ns()
        while clock.now_ns() - began_ns < duty * SLICE_NS:
            sum(range(200))
        if duty < 1:
            time.sleep((1 - duty) * SLICE_NS / 1e9)


def hold_objects(inside: Inside, *, objects: int) -> None:
    """Fill a cache with Python objects, and keep it out of collections as everything that is there at the start."""
    cache: list[dict[str, Any]] = [{"id": i} for i in range(objects)]
    for entry in cache:
        entry["self"] = entry  # a cycle, so that the collector must follow it
    inside.state["cache"] = cache
    gc.freeze()


class Collector:
    """Collects all garbage at every `every`th call, as a library that wants to be tidy."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._calls = 0

    def __call__(self) -> None:
        """Once more."""
        self._calls += 1
        if self._calls % self._every == 1:
            gc.collect()


def slow_down(inside: Inside, *, factor: float) -> None:
    """In a worker: every step of a pass takes `factor` times the CPU time, as on a core with a lower clock."""
    model = inside.model
    plain = {"collate": burn, "split": burn, "forward": lambda ns: _compute(model, ns)}

    def slower(step: Callable[..., Any], more: Callable[[int], None]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            began_ns = clock.thread_cpu_ns()
            result = step(*arguments)
            more(int((factor - 1) * (clock.thread_cpu_ns() - began_ns)))
            return result

        return run

    for name, more in plain.items():
        setattr(model, name, slower(getattr(model, name), more))


def is_slow(inside: Inside) -> bool:
    """In a worker: `slow_down` was called."""
    return "forward" in vars(inside.model)


def full_speed(inside: Inside) -> None:
    """In a worker: end what `slow_down` began."""
    for name in ("collate", "split", "forward"):
        delattr(inside.model, name)


def _compute(model: Any, cpu_ns: int) -> None:
    """More of what a forward does: kernels, which let other threads run."""
    until_ns = clock.thread_cpu_ns() + cpu_ns
    while clock.thread_cpu_ns() < until_ns:
        for _ in range(4):
            _ = model.fixed @ model.fixed


def note_config(inside: Inside, **changes: Any) -> None:
    """Tell in the log that settings were changed; the values are told, and nothing else."""
    from shared.events import Cfg

    log = inside.worker._log
    log.write(Cfg({**dataclasses.asdict(inside.settings), **changes}))
