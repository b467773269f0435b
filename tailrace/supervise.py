"""Child processes that are started, watched, started again when they die, and stopped in good order.

A child says when it serves (`shared.process.tell_ready`). One that dies again and again before that is given up: what
it needs is not there. One that served and died is started again for ever, with growing pauses: a request that kills
its worker must not end the whole system. From the second life in a row on, what a child says on standard error is
passed on by us, so that the last of it can stand beside the verdict.
"""

import asyncio
import contextlib
import ctypes
import itertools
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shared import clock, humanlog

BACKOFF_FIRST_S = 0.5
BACKOFF_MAX_S = 10.0
STEADY_NS = 30_000_000_000
"""A child that lived this long starts afresh with the least backoff."""
QUICK_DEATHS_MAX = 5
LAST_WORDS_BYTES = 1_500
LAST_WORDS_LINES = 8
FATAL_STATUS = 2
"""A child that says its settings are wrong would say so again."""
_ADVICE = {
    -signal.SIGKILL: "It was killed from outside, by the kernel if memory is short (see dmesg): run fewer workers, or "
    "smaller models.",
    -signal.SIGSEGV: "It crashed in native code (torch, a driver, a model's extension): see what the model loads.",
}
_numbers = itertools.count()
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
    _served: bool = False
    _said: bytes = b""

    async def keep_running(self) -> None:
        """Start it, and again whenever it dies, with growing pauses. Raises GaveUp."""
        human = humanlog.get()
        backoff_s, quick_deaths = BACKOFF_FIRST_S, 0
        with self._ear() as address:
            while not self.stopping:
                started_ns = clock.now_ns()
                status = await self._live(address, listen=quick_deaths > 0)
                if status is None:
                    return
                if status == FATAL_STATUS:
                    raise GaveUp(f"{self.title} could not start; its reason is above")
                if clock.now_ns() - started_ns > STEADY_NS:
                    backoff_s, quick_deaths = BACKOFF_FIRST_S, 0
                quick_deaths = 1 if self._served else quick_deaths + 1
                if quick_deaths >= QUICK_DEATHS_MAX:
                    raise GaveUp(self._verdict(quick_deaths, status))
                human.warning("a process died", which=self.title, how=how(status), restart_in_s=backoff_s)
                await asyncio.sleep(backoff_s)
                backoff_s = min(BACKOFF_MAX_S, 2 * backoff_s)

    async def _live(self, address: str, *, listen: bool) -> int | None:
        """Start the process and return its status once it has ended; None when it was told to stop.

        In a session of its own: Ctrl-C reaches the supervisor alone, which stops all in order.
        """
        self._served, self._said = False, b""
        self.process = await asyncio.create_subprocess_exec(
            *self.command,
            env={**os.environ, **self.env, "NOTIFY_SOCKET": address},
            stderr=asyncio.subprocess.PIPE if listen else None,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        passing_on = asyncio.create_task(self._pass_on(self.process.stderr), name=f"stderr of {self.title}")
        try:
            if self.stopping:
                # `stop` came while the process was being made, and could not see it.
                self._signal(signal.SIGKILL)
            status = await self.process.wait()
            # What it said last is under way; but a child of its own may hold the pipe open for long.
            await asyncio.wait([passing_on], timeout=1)
        finally:
            passing_on.cancel()
        return None if self.stopping else status

    async def _pass_on(self, stderr: asyncio.StreamReader | None) -> None:
        while stderr is not None and (said := await stderr.read(1 << 16)):
            self._said = (self._said + said)[-LAST_WORDS_BYTES:]
            sys.stderr.buffer.write(said)
            sys.stderr.buffer.flush()

    @contextlib.contextmanager
    def _ear(self) -> Iterator[str]:
        """The address where the child says that it serves, while this lasts: READY=1, as to systemd."""
        loop = asyncio.get_running_loop()
        name = f"tailrace/{os.getpid()}/{next(_numbers)}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as ear:
            ear.bind(f"\0{name}")  # no file: it ends with us

            def heard() -> None:
                with contextlib.suppress(BlockingIOError):
                    self._served |= b"READY=1" in ear.recv(4096)

            loop.add_reader(ear, heard)
            try:
                yield f"@{name}"
            finally:
                loop.remove_reader(ear)

    def _verdict(self, deaths: int, status: int) -> str:
        lines = self._said.decode("utf-8", "replace").strip().splitlines()[-LAST_WORDS_LINES:]
        said = "\n".join(["; the last it said:", *(f"  {line}" for line in lines)]) if lines else ""
        return (
            f"{self.title} died {deaths} times in a row, the last time with {how(status)}{said}\n"
            f"{_ADVICE.get(status, 'Mend what its messages say, then start again.')}"
        )

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


def how(status: int) -> str:
    """An exit status in words."""
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
