"""Child processes that are started, watched, started again when they die, and stopped in good order."""

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field

from shared import clock, humanlog

BACKOFF_FIRST_S = 0.5
BACKOFF_MAX_S = 10.0
STEADY_NS = 30_000_000_000
"""A child that lived this long starts afresh with the least backoff."""
QUICK_DEATHS_MAX = 5
FATAL_STATUS = 2
"""A child that says its settings are wrong would say so again."""
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class GaveUp(Exception):
    """A child cannot be kept running; the text says why."""


def die_with_parent() -> None:
    """In the child, before exec: be told to stop when the supervisor is killed, so that nothing is left behind."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass(slots=True)
class Child:
    """One process to keep running."""

    title: str
    command: Sequence[str]
    env: dict[str, str] = field(default_factory=dict)
    process: asyncio.subprocess.Process | None = None
    stopping: bool = False

    async def keep_running(self) -> None:
        """Start it, and again whenever it dies, with growing pauses. Raises GaveUp."""
        human = humanlog.get()
        backoff_s, quick_deaths = BACKOFF_FIRST_S, 0
        while not self.stopping:
            started_ns = clock.now_ns()
            status = await self._live()
            if status is None:
                return
            if status == FATAL_STATUS:
                raise GaveUp(f"{self.title} could not start; its reason is above")
            if clock.now_ns() - started_ns > STEADY_NS:
                backoff_s, quick_deaths = BACKOFF_FIRST_S, 0
            quick_deaths += 1
            if quick_deaths >= QUICK_DEATHS_MAX:
                raise GaveUp(f"{self.title} died {quick_deaths} times in a row, the last time with {_how(status)}")
            human.warning("a process died", which=self.title, how=_how(status), restart_in_s=backoff_s)
            await asyncio.sleep(backoff_s)
            backoff_s = min(BACKOFF_MAX_S, 2 * backoff_s)

    async def _live(self) -> int | None:
        """Start the process and return its status once it has ended; None when it was told to stop.

        In a session of its own: Ctrl-C reaches the supervisor alone, which stops all in order.
        """
        self.process = await asyncio.create_subprocess_exec(
            *self.command, env={**os.environ, **self.env}, start_new_session=True, preexec_fn=die_with_parent
        )
        if self.stopping:
            # `stop` came while the process was being made, and could not see it.
            self._signal(signal.SIGKILL)
        status = await self.process.wait()
        return None if self.stopping else status

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)

    async def stop(self, timeout_s: float) -> None:
        """Tell it to stop; kill it when it does not within `timeout_s`."""
        self.stopping = True
        if self.process is None or self.process.returncode is not None:
            return
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout_s):
                await self.process.wait()
        except TimeoutError:
            humanlog.get().warning("killed, since it did not stop", which=self.title, after_s=timeout_s)
            self._signal(signal.SIGKILL)
            await self.process.wait()


def _how(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
