"""What else the machine did: stolen time, pressure, and the work of processes that are not ours."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from shared import clock

STEAL_MAX = 0.02
"""A run is flagged when the hypervisor took more than this share before the fault: a rule fixed beforehand."""
FOREIGN_MAX = 0.10
"""The same for the share of all cores that other processes used."""
LATE_MAX_MS = 10.0
LATE_SHARE_MAX = 0.1
"""Latencies are the server's own, so a late generator only bends the arrivals a little."""
_STEAL, _IDLE, _IOWAIT = 7, 3, 4
_SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters at one instant; `own_s` is the CPU time of our processes, `pressure_us` by resource."""

    at_ns: int
    jiffies: tuple[int, ...]
    own_s: float
    pressure_us: dict[str, int]


def read(pids: Iterable[int]) -> Reading:
    """The counters of now. A process that has gone counts nothing."""
    own_s = 0.0
    for pid in pids:
        try:
            times = psutil.Process(pid).cpu_times()
            own_s += times.user + times.system
        except psutil.Error:
            continue
    first = Path("/proc/stat").read_text().split("\n", 1)[0]
    pressure = {name: _pressure_us(name) for name in ("cpu", "io", "memory")}
    return Reading(clock.now_ns(), tuple(map(int, first.split()[1:])), own_s, pressure)


def between(a: Reading, b: Reading) -> dict[str, Any]:
    """Shares of the time between two readings: of all cores stolen, busy, used by others; PSI some, by resource."""
    ticks = [y - x for x, y in zip(a.jiffies, b.jiffies, strict=True)]
    # Guest time is counted in user time already.
    total = max(1, sum(ticks[:8]))
    busy = total - ticks[_IDLE] - ticks[_IOWAIT]
    seconds = max(1e-9, (b.at_ns - a.at_ns) / 1e9)
    core_s = seconds * (psutil.cpu_count() or 1)
    own = (b.own_s - a.own_s) / core_s
    return {
        "seconds": round(seconds, 2),
        "steal": round(ticks[_STEAL] / total, 4),
        "busy": round(busy / total, 4),
        "own": round(own, 4),
        "foreign": round(max(0.0, (busy - ticks[_STEAL]) / total - own), 4),
        "psi": {
            name: round((b.pressure_us[name] - us) / (seconds * _SECOND_US), 4) for name, us in a.pressure_us.items()
        },
    }


def flags_of(baseline: dict[str, Any], *, late_p99_ms: float, p99_ms: float) -> list[str]:
    """Why a run should not count, by rules that do not look at the diagnosis."""
    flags = []
    if baseline["steal"] > STEAL_MAX:
        flags.append(f"steal {baseline['steal']:.1%} before the fault")
    if baseline["foreign"] > FOREIGN_MAX:
        flags.append(f"others used {baseline['foreign']:.0%} of the machine before the fault")
    if late_p99_ms > max(LATE_MAX_MS, LATE_SHARE_MAX * p99_ms):
        flags.append(f"the generator was {late_p99_ms:.1f} ms late at p99")
    return flags


def _pressure_us(name: str) -> int:
    """Time in which some task waited for a resource, us since boot; 0 where the kernel does not say."""
    try:
        some = Path(f"/proc/pressure/{name}").read_text().split("\n", 1)[0]
        return int(some.rpartition("total=")[2])
    except (OSError, ValueError):
        return 0
