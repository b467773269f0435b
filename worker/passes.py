"""How long passes take: the one way in which everything here measures a bare model.

No model and no torch in here: what is timed is a function, and the clock may be a stub.
"""

import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shared import clock


@dataclass(frozen=True, slots=True)
class Stretch:
    """What this process did in one stretch of time. Instants are monotonic ns; `cpu_ns` is that of all its threads."""

    began_ns: int
    ended_ns: int
    """The last pass was over: at or after the end that was asked for."""
    durations_ns: list[int]
    """Of each pass, in their order; at least one."""
    cpu_ns: int


def stretch(
    once: Callable[[], object], *, begin_at_ns: int, length_ns: int, now_ns: Callable[[], int] = clock.now_ns
) -> Stretch:
    """Call `once` again and again from `begin_at_ns` (at once, when that is over) for so long, and at least once.

    A call that has begun is finished and counts, and so does its time: cutting it off would favour short passes.
    """
    if (left_ns := begin_at_ns - now_ns()) > 0:
        time.sleep(left_ns / 1e9)
    cpu_before_ns = _cpu_ns()
    began_ns = before_ns = now_ns()
    durations_ns: list[int] = []
    while not durations_ns or before_ns - began_ns < length_ns:
        once()
        after_ns = now_ns()
        durations_ns.append(after_ns - before_ns)
        before_ns = after_ns
    return Stretch(began_ns, before_ns, durations_ns, _cpu_ns() - cpu_before_ns)


def interleaved(
    candidates: Mapping[str, Callable[[], object]], *, rounds: int, now_ns: Callable[[], int] = clock.now_ns
) -> dict[str, list[int]]:
    """ns that each candidate took in each round. They take turns, so that all see the same noise.

    Each runs once before, not counted: the first call pays for memory and for kernels that are chosen then.
    """
    for once in candidates.values():
        once()
    taken_ns: dict[str, list[int]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, once in candidates.items():
            taken_ns[name] += stretch(once, begin_at_ns=0, length_ns=0, now_ns=now_ns).durations_ns
    return taken_ns


def _cpu_ns() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return int((used.ru_utime + used.ru_stime) * 1e9)
