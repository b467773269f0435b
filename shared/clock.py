"""The only module that reads a clock.

All durations come from CLOCK_MONOTONIC: one clock for all processes of a host, integer nanoseconds, never adjusted.
The wall clock is for display and for joins with outside events; it never enters a sum.
"""

import os
import time
from pathlib import Path

now_ns = time.monotonic_ns
"""This host's monotonic clock, in nanoseconds."""

thread_cpu_ns = time.thread_time_ns
"""CPU time of the calling thread, in nanoseconds."""


def wall_us() -> int:
    """The wall clock, in microseconds since the epoch."""
    return time.time_ns() // 1_000


def anchor() -> tuple[int, int, int]:
    """One reading of both clocks: (monotonic ns before, wall ns, monotonic ns after).

    The wall clock was read somewhere between the two monotonic stamps, so half their gap is the uncertainty.
    """
    before_ns = time.monotonic_ns()
    wall_ns = time.time_ns()
    return before_ns, wall_ns, time.monotonic_ns()


def clock_id() -> str:
    """Name the monotonic clock: processes with equal names read the same clock, so their stamps compare directly.

    The name is the kernel's boot id and the time namespace, since a container may have a clock offset of its own.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/time").stat().st_ino
    except OSError:
        # No Linux /proc: claim no shared clock at all rather than a wrong one.
        return f"pid-{os.getpid()}"
    return f"{boot}/{namespace}"
