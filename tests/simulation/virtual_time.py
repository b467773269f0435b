"""An event loop without a clock: when nothing is left to do it jumps to the next timer.

Theory of operation. Everything runs in one thread, so the order of all steps follows from the order in which they were
scheduled, and that from the program. Sets of tasks and futures are the one trap, because they are ordered by hash, and
the hash is an address: here each has a number instead. A `Process` is the tasks that descend from one; a step belongs
to the process whose context it runs in. The steps of a frozen process wait until it thaws, as those of a stopped
process do, and a dead one has none. A thread pool's work is done at once, and its result comes when its time is over.
"""

import asyncio
import contextvars
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
START_NS = 1_000_000_000_000
"""What the clock shows at the start: no stamp may be 0, for that means "not reached"."""

_process: contextvars.ContextVar["Process | None"] = contextvars.ContextVar("process", default=None)
_numbers = itertools.count(1)


class Stuck(Exception):
    """Somebody waits, and nothing will ever happen."""


class Handle(asyncio.TimerHandle):
    """A step to take. Made thousands of times a run, so without asyncio's means for debugging."""

    __slots__ = ()

    def __init__(self, callback: Any, args: tuple[Any, ...], when_ns: int, context: contextvars.Context | None) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._callback = callback
        self._args: Any = args
        self._cancelled = False
        self._when = when_ns / 1e9

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None


class Process:
    """A simulated process: its tasks, which can be frozen, and killed all at once."""

    def __init__(self, loop: "VirtualLoop", name: str) -> None:
        self.name = name
        self.alive = True
        self.frozen = False
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.on_death: list[Callable[[], None]] = []
        self._loop = loop
        self._parked: list[Handle] = []
        self.context = contextvars.copy_context()
        self.context.run(_process.set, self)
        self.signal_handlers: dict[int, Callable[[], object]] = {}

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run a coroutine as a task of this process."""
        return self.context.run(self._loop.create_task, work)

    def signal(self, number: int) -> None:
        """Deliver a signal that the process handles."""
        self._loop.call_soon(self.signal_handlers[number], context=self.context)

    def park(self, handle: Handle) -> None:
        """Keep a step until the process thaws."""
        self._parked.append(handle)

    def freeze(self) -> None:
        """SIGSTOP."""
        self.frozen = True

    def thaw(self) -> None:
        """SIGCONT."""
        self.frozen = False
        parked, self._parked = self._parked, []
        for handle in parked:
            self._loop.ready.append(handle)

    def kill(self) -> None:
        """SIGKILL: nothing that it still does can be noticed outside."""
        self.alive = False
        for end in self.on_death:
            end()
        self.thaw()
        for task in list(self.tasks):
            task.cancel()


def current() -> Process | None:
    """The process that is running."""
    return _process.get()


class _Task(asyncio.Task[T]):
    def __init__(self, work: Coroutine[Any, Any, T], *, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._number = next(_numbers)
        super().__init__(work, loop=loop, name=name)

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future[T]):
    def __init__(self, *, loop: asyncio.AbstractEventLoop) -> None:
        self._number = next(_numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = START_NS
        self.ready: deque[Handle] = deque()
        self.steps = 0
        self.errors: list[dict[str, Any]] = []
        """What nobody caught."""
        self.connector: Callable[[Callable[[], asyncio.Protocol], str], Any] | None = None
        """Opens connections."""
        self.service_time_s: Callable[[], float] = lambda: 0.0
        """How long a function takes that is given to a thread pool."""
        self._timers: list[tuple[int, int, Handle]] = []
        self._order = itertools.count()

    # -- running -------------------------------------------------------------------------------------------------------

    def run_until_complete(self, work: Any) -> Any:
        """Run until `work` is done. Raises Stuck when nothing is left that could end it."""
        task = asyncio.ensure_future(work, loop=self)
        asyncio._set_running_loop(self)
        try:
            while not task.done():
                self._turn()
        finally:
            asyncio._set_running_loop(None)
        return task.result()

    def _turn(self) -> None:
        ready = self.ready
        while ready:
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(_process)
            if process is not None and process.frozen:
                process.park(handle)
                continue
            self.steps += 1
            try:
                handle._context.run(handle._callback, *handle._args)
            except Exception as e:
                self.errors.append({"message": f"a callback failed: {e!r}", "exception": e})
            if not ready:
                return  # the caller looks whether it has what it waited for
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not timers:
            raise Stuck("nothing is ready, and no timer is set")
        self.now_ns = max(self.now_ns, timers[0][0])
        while timers and timers[0][0] <= self.now_ns:
            handle = heapq.heappop(timers)[2]
            process = handle._context.get(_process)
            if process is None or process.alive:
                ready.append(handle)

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self.ready.clear()
        self._timers.clear()

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        pass

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    # -- scheduling ----------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.now_ns / 1e9

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, 0, context)
        self.ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> Handle:
        return self._at(self.now_ns + max(0, round(delay * 1e9)), callback, args, context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> Handle:
        return self._at(round(when * 1e9), callback, args, context)

    def _at(self, when_ns: int, callback: Any, args: tuple[Any, ...], context: contextvars.Context | None) -> Handle:
        handle = Handle(callback, args, when_ns, context)
        heapq.heappush(self._timers, (when_ns, next(self._order), handle))
        return handle

    def create_future(self) -> "asyncio.Future[Any]":
        return _Future(loop=self)

    def create_task(
        self, coro: Any, *, name: object = None, context: contextvars.Context | None = None
    ) -> "asyncio.Task[Any]":
        task: asyncio.Task[Any] = _Task(coro, loop=self, name=str(name or "task"))
        process = _process.get()
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(lambda done: process.tasks.pop(done, None))
            if not process.alive:
                task.cancel()
        return task

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = self.create_future()
        try:
            result = func(*args)
        except Exception as e:
            self.call_later(self.service_time_s(), _unless_done, future, future.set_exception, e)
        else:
            self.call_later(self.service_time_s(), _unless_done, future, future.set_result, result)
        return future

    # -- the world -----------------------------------------------------------------------------------------------------

    async def create_unix_connection(self, protocol_factory: Any, path: Any = None, **_: Any) -> Any:
        assert self.connector is not None
        return await self.connector(protocol_factory, str(path))

    def add_signal_handler(self, sig: int, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        process = _process.get()
        assert process is not None
        process.signal_handlers[sig] = lambda: callback(*args)


def _unless_done(future: "asyncio.Future[T]", settle: Callable[[Any], None], outcome: Any) -> None:
    if not future.done():
        settle(outcome)
