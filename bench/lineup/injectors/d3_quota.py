"""D3: the worker's control group may use only a part of a core in each tenth of a second.

Where control groups cannot be written, a helper stops and continues the worker as the kernel would (SIGSTOP), and the
label says so (`facts.fallback`).
"""

import random
import signal
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import psutil

from bench.lineup.backgrounds import ROWS, TEXTS
from bench.lineup.inside import Inside
from bench.lineup.labels import Truth
from bench.lineup.mechanisms import blame
from bench.lineup.scenario import Scenario, Span, Strength
from bench.lineup.stack import Stack

PERIOD_US = 100_000
TICK_S = 0.005
V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


@contextmanager
def quota(pid: int, cores: float) -> Iterator[None]:
    """Let a process use so many cores at most. Raises OSError where that is not allowed."""
    usual = group_of(pid)
    group = usual / uuid.uuid4().hex[:12]
    group.mkdir()
    try:
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{round(cores * PERIOD_US)} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(round(cores * PERIOD_US)))
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        if psutil.pid_exists(pid):
            (usual / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def group_of(pid: int) -> Path:
    """The folder of the control group that rules over a process' CPU time."""
    unified = V2
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return V1 / path.lstrip("/")
        if not controllers:
            unified = V2 / path.lstrip("/")
    return unified


def stop_and_go(inside: Inside, *, pids: list[int], cores: float) -> None:
    """In a helper: stop each process once it has used its share of a period, and continue it when the next begins."""
    stop = inside.state["stop"] = threading.Event()

    def keep() -> None:
        processes = [psutil.Process(pid) for pid in pids]
        ticks = round(PERIOD_US / 1e6 / TICK_S)
        while not stop.is_set():
            began = [_cpu_s(p) for p in processes]
            for p in processes:
                p.send_signal(signal.SIGCONT)
            for _ in range(ticks):
                stop.wait(TICK_S)
                for p, before_s in zip(processes, began, strict=True):
                    if _cpu_s(p) - before_s >= cores * PERIOD_US / 1e6:
                        p.send_signal(signal.SIGSTOP)
        for p in processes:
            p.send_signal(signal.SIGCONT)

    threading.Thread(target=keep, daemon=True).start()


def go(inside: Inside) -> None:
    """In a helper: end that."""
    inside.state.pop("stop").set()


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@asynccontextmanager
async def inject(stack: Stack, rng: random.Random, strength: Strength, truth: Truth) -> AsyncIterator[None]:
    blame(truth, *stack.workers)
    pids = [worker.pid for worker in stack.workers]
    cores = strength["cores"]
    with ExitStack() as groups:
        try:
            for pid in pids:
                groups.enter_context(quota(pid, cores))
        except OSError as e:
            truth.facts["fallback"] = f"SIGSTOP, since {e.filename} cannot be written: {e.strerror}"
            await stack.helpers[0].call("stop_and_go", pids=pids, cores=cores)
        yield
        if "fallback" in truth.facts:
            await stack.helpers[0].call("go")


SCENARIO = Scenario(
    cause="D3",
    mechanism="a CPU quota of the workers' control groups",
    inject=inject,
    segments=("forward", "stream_wait", "batch_wait", "dispatch", "collate", "post", "out_loop", "deliver"),
    # They need about a third of a core, in bursts.
    strength={"cores": Span(0.42, 0.35)},
    backgrounds=(TEXTS, replace(ROWS, name="rows1", workers=1, rate_per_s=35)),
    helpers=1,
)
