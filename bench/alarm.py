"""A call at an instant, on time to some microseconds.

Event loops wait in whole milliseconds: epoll takes no less, and uvloop's timers count in them. A generator that is a
millisecond late would measure a small model wrongly. Linux has timers that are file descriptors and know nanoseconds;
elsewhere the loop's own timer must do, and the report says how late it was.
"""

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable

from shared import clock

_MONOTONIC = 1
_ABSOLUTE = 1


class _Spec(ctypes.Structure):
    """`struct itimerspec`: interval and first expiry, each in seconds and nanoseconds."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("at_s", ctypes.c_long),
        ("at_ns", ctypes.c_long),
    )


class Alarm:
    """Calls `ring` on the running loop once the instant has come that was set last. Close it in the end."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = -1
        if sys.platform == "linux":
            # The flags of a timer are those of a file (timerfd_create(2)).
            self._fd = self._libc.timerfd_create(_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._expired)

    def set(self, at_ns: int) -> None:
        """Ring at `at_ns` of `clock.now_ns`, at once if that has passed; an instant set before is forgotten."""
        if self._fd >= 0:
            at_s, rest_ns = divmod(max(1, at_ns), 1_000_000_000)
            self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(_Spec(0, 0, at_s, rest_ns)), None)
            return
        if self._handle:
            self._handle.cancel()
        self._handle = self._loop.call_later(max(0, at_ns - clock.now_ns()) / 1e9, self._ring)

    def close(self) -> None:
        """Never ring again."""
        if self._handle:
            self._handle.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _expired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # set anew since the loop saw it expire
            return
        self._ring()
