"""What a thread used of its machine: CPU time, waits for a core, page faults, context switches."""

import os
import threading
import weakref
from dataclasses import dataclass

from shared import clock

try:
    import resource

    _RUSAGE_THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)
except ImportError:  # not a Unix
    _RUSAGE_THREAD = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Totals since the thread began, or the difference of two of them. What the platform cannot tell stays 0."""

    cpu_ns: int = 0
    runq_ns: int = 0
    """Ready to run, but no core was free (Linux, schedstat)."""
    minflt: int = 0
    majflt: int = 0
    nvcsw: int = 0
    nivcsw: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.cpu_ns + other.cpu_ns,
            self.runq_ns + other.runq_ns,
            self.minflt + other.minflt,
            self.majflt + other.majflt,
            self.nvcsw + other.nvcsw,
            self.nivcsw + other.nivcsw,
        )

    def since(self, earlier: "Usage") -> "Usage":
        """What was used between two readings of one meter."""
        return Usage(
            self.cpu_ns - earlier.cpu_ns,
            self.runq_ns - earlier.runq_ns,
            self.minflt - earlier.minflt,
            self.majflt - earlier.majflt,
            self.nvcsw - earlier.nvcsw,
            self.nivcsw - earlier.nivcsw,
        )


class ThreadMeter:
    """Reads the usage of the thread that made it; other threads must make their own."""

    def __init__(self) -> None:
        self._schedstat_fd: int | None = None
        try:
            # Kept open: one pread a reading instead of a walk through /proc.
            path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
            self._schedstat_fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._schedstat_fd)
        except OSError:
            pass  # not Linux, or a kernel without schedstats

    def read(self) -> Usage:
        """The thread's totals now."""
        runq_ns = self.runq_ns()
        if _RUSAGE_THREAD is None:
            return Usage(cpu_ns=clock.thread_cpu_ns(), runq_ns=runq_ns)
        used = resource.getrusage(_RUSAGE_THREAD)
        return Usage(clock.thread_cpu_ns(), runq_ns, used.ru_minflt, used.ru_majflt, used.ru_nvcsw, used.ru_nivcsw)

    def runq_ns(self) -> int:
        """How long the thread has waited for a core, in all; 0 where the platform does not tell."""
        if self._schedstat_fd is None:
            return 0
        try:
            # "cpu_ns waited_ns timeslices"; the second is what we are after.
            return int(os.pread(self._schedstat_fd, 96, 0).split()[1])
        except (OSError, IndexError, ValueError):
            return 0
