"""What a process notices about itself: GC pauses, a late event loop, and once a second what it and its machine use."""

import asyncio
import gc
import os
import resource
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from platform import python_version
from typing import Any

import psutil

from shared import clock
from shared.eventlog import EventLog
from shared.events import Clk, Evt, Hello, PeerOffset, Res
from shared.redis_urls import without_secrets

GC_PAUSE_MIN_NS = 1_000_000
"""A shorter pause of a young generation is not worth a line; a full collection always is."""
LOOP_BEAT_S = 0.02
LOOP_LAG_MIN_NS = 5_000_000
SAMPLE_INTERVAL_S = 1.0
ANCHOR_INTERVAL_S = 10.0
CLOCK_STEP_NS = 1_000_000


def cgroup_cores() -> float | None:
    """The CPU quota of this control group, in cores; None without one."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        quota_us = int(Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").read_text())
        period_us = int(Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us").read_text())
        return quota_us / period_us if quota_us > 0 else None
    except (OSError, ValueError):
        return None


def throttled_ns() -> int:
    """For how long in all the CPU quotas over this process have stopped it, ns; 0 where the kernel does not say."""
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return 0
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            file, field, unit_ns = Path(f"/sys/fs/cgroup{path}/cpu.stat"), "throttled_usec", 1_000
        elif "cpu" in controllers.split(","):
            file, field, unit_ns = Path(f"/sys/fs/cgroup/cpu{path}/cpu.stat"), "throttled_time", 1
        else:
            continue
        try:
            stat = dict(entry.split() for entry in file.read_text().splitlines())
        except (OSError, ValueError):
            continue
        if field in stat:
            return int(stat[field]) * unit_ns
    return 0


def usable_cores() -> int:
    """Cores this process may use: its affinity, cut by the control group's quota, at least 1."""
    cores = len(os.sched_getaffinity(0))
    quota = cgroup_cores()
    return max(1, cores if quota is None else min(cores, int(quota)))


def hello(argv: list[str], *, torch: str = "", torch_threads: int = 0) -> Hello:
    """The first record of a process."""
    return Hello(
        tailrace=metadata.version("tailrace"),
        python=python_version(),
        redis_py=metadata.version("redis"),
        torch=torch,
        cores=usable_cores(),
        cgroup_cores=cgroup_cores(),
        torch_threads=torch_threads,
        gc_thresholds=list(gc.get_threshold()),
        argv=[without_secrets(word) for word in argv],
    )


def calm_gc() -> None:
    """Keep what was loaded at start out of every collection, and collect the young less often.

    Measured with torch loaded: a full collection takes 50 ms and more, after this under 1 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


class GcWatch:
    """Writes an `evt` for each garbage collection that took long. `gc.callbacks` costs nothing measurable."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._started_ns = 0

    def __enter__(self) -> "GcWatch":
        gc.callbacks.append(self._notice)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._notice)

    def _notice(self, phase: str, info: dict[str, int]) -> None:
        now = clock.now_ns()
        if phase == "start":
            self._started_ns = now
        elif info["generation"] == 2 or now - self._started_ns >= GC_PAUSE_MIN_NS:
            attrs = {"generation": info["generation"], "collected": info["collected"]}
            self._log.write(Evt("gc", self._started_ns, now, attrs))


class LoopWatch:
    """Beats on the event loop and notices when a beat comes late."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.lag_max_ns = 0
        self.lag_ns = 0

    async def run(self) -> None:
        """Beat for ever."""
        while True:
            due_ns = clock.now_ns() + int(LOOP_BEAT_S * 1e9)
            await asyncio.sleep(LOOP_BEAT_S)
            now = clock.now_ns()
            self.lag_ns = max(0, now - due_ns)
            self.lag_max_ns = max(self.lag_max_ns, self.lag_ns)
            if self.lag_ns >= LOOP_LAG_MIN_NS:
                self._log.write(Evt("loop_lag", due_ns, now))

    def take_max_ns(self) -> int:
        """The largest lag since the last call."""
        lag, self.lag_max_ns = self.lag_max_ns, 0
        return lag


class Sampler:
    """Writes a `res` record a second. `extra` adds what only the process knows (in flight, queue depths)."""

    def __init__(self, log: EventLog, loop_watch: LoopWatch, extra: Callable[[], dict[str, Any]]) -> None:
        self._log = log
        self._loop_watch = loop_watch
        self._extra = extra
        self._process = psutil.Process()
        self._throttled_ns = 0

    async def run(self) -> None:
        """Sample for ever."""
        self._process.cpu_percent()
        psutil.cpu_times_percent(percpu=True)
        self._throttled_ns = throttled_ns()
        before = resource.getrusage(resource.RUSAGE_SELF)
        at_ns = clock.now_ns()
        while True:
            await asyncio.sleep(SAMPLE_INTERVAL_S)
            now_ns = clock.now_ns()
            usage = resource.getrusage(resource.RUSAGE_SELF)
            self._log.write(self._sample(now_ns - at_ns, before, usage))
            before, at_ns = usage, now_ns

    def _sample(self, interval_ns: int, before: resource.struct_rusage, usage: resource.struct_rusage) -> Res:
        cores = psutil.cpu_times_percent(percpu=True)
        throttled, before_ns = throttled_ns(), self._throttled_ns
        self._throttled_ns = throttled
        return Res(
            interval=interval_ns,
            cpu_process=self._process.cpu_percent(),
            cpu_user=[c.user for c in cores],
            cpu_system=[c.system for c in cores],
            cpu_iowait=[getattr(c, "iowait", 0.0) for c in cores],
            cpu_steal=[getattr(c, "steal", 0.0) for c in cores],
            rss_bytes=self._process.memory_info().rss,
            threads=self._process.num_threads(),
            minflt=usage.ru_minflt - before.ru_minflt,
            majflt=usage.ru_majflt - before.ru_majflt,
            nvcsw=usage.ru_nvcsw - before.ru_nvcsw,
            nivcsw=usage.ru_nivcsw - before.ru_nivcsw,
            psi_cpu=_pressure("cpu"),
            psi_io=_pressure("io"),
            psi_memory=_pressure("memory"),
            # Another control group counts from another beginning.
            throttled=max(0, throttled - before_ns),
            loop_lag_max=self._loop_watch.take_max_ns(),
            gc_counts=list(gc.get_count()),
            **self._extra(),
        )


def _pressure(what: str) -> float:
    """Share of the last 10 s in which some task waited for `what`, in percent; 0 where the kernel does not say."""
    try:
        some = Path(f"/proc/pressure/{what}").read_text().split("\n", 1)[0]
        return float(some.split("avg10=")[1].split()[0])
    except (OSError, IndexError, ValueError):
        return 0.0


class ClockWatch:
    """Writes a `clk` anchor every 10 s, and an `evt` when the wall clock stepped against the monotonic one."""

    def __init__(self, log: EventLog, peers: Callable[[], list[PeerOffset]] = list) -> None:
        self._log = log
        self._peers = peers
        self._offset_ns: int | None = None

    async def run(self) -> None:
        """Anchor for ever."""
        while True:
            self.anchor()
            await asyncio.sleep(ANCHOR_INTERVAL_S)

    def anchor(self) -> None:
        """Write one anchor."""
        before_ns, wall_ns, after_ns = clock.anchor()
        self._log.write(Clk(before_ns, wall_ns, after_ns, self._peers()))
        offset_ns = wall_ns - (before_ns + after_ns) // 2
        if self._offset_ns is not None and abs(offset_ns - self._offset_ns) > CLOCK_STEP_NS + (after_ns - before_ns):
            self._log.write(Evt("clock_step", before_ns, after_ns, {"ns": offset_ns - self._offset_ns}))
        self._offset_ns = offset_ns
