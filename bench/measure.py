"""One measurement from its settings to its results: ask what the server is, make the requests, drive them, sum up."""

import asyncio
import contextlib
import itertools
import os
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from bench import discover, replay
from bench.arrivals import Arrivals, schedule
from bench.connections import Target, target_of
from bench.errors import CannotMeasure
from bench.load import ClosedLoop, Driver, OpenLoop, Progress
from bench.oip import ModelSpec
from bench.results import Results
from bench.tally import Tally
from bench.workload import Maker, Request, Sender, Shape, from_file, made_up
from shared import clock
from shared.vitals import calm_gc

CONNECTIONS = 16
OPEN_CONNECTIONS = 1024
DURATION_S = 10.0
LEAD_NS = 50_000_000
"""So long after everything is ready the schedule begins."""
FILES_BESIDE = 64

Watch = Callable[[Progress, Tally], AbstractContextManager[None]]
"""Shows the progress for as long as the context lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What was asked for. A closed loop without `rate_per_s` and `replay`. 0 and "" stand for what is usual."""

    url: str
    model: str = ""
    version: str = ""
    connections: int = 0
    duration_s: float = 0.0
    warm_up_s: float = 1.0
    rate_per_s: float = 0.0
    arrivals: Arrivals = Arrivals.POISSON
    burst_mean: float = 10.0
    replay: tuple[Path, ...] = ()
    since_us: int = 0
    speed: float = 1.0
    data: Path | None = None
    shape: Shape = field(default_factory=Shape)
    binary: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 60.0
    seed: int = 1

    @property
    def is_open(self) -> bool:
        """True when requests have instants, and wait for no answer."""
        return bool(self.rate_per_s or self.replay)


@dataclass(frozen=True, slots=True)
class _Work:
    """What will be sent: requests in turns, or a recorded plan with its length in ns."""

    models: tuple[ModelSpec, ...]
    binary: bool
    first: Request
    requests: list[Request]
    plan: Iterator[tuple[int, Request]] | None = None
    plan_ns: int = 0


async def measure(settings: Settings, stop: asyncio.Event, watch: Watch) -> Results:
    """Run one measurement; `stop` breaks it off. Raises CannotMeasure before anything was sent."""
    target = target_of(settings.url)
    server = await discover.server_of(target, settings.headers)
    work = await _recorded_work(settings, target) if settings.replay else await _work(settings, target)
    await discover.check(target, work.first, binary=work.binary, timeout_s=settings.timeout_s)
    connections = settings.connections or (OPEN_CONNECTIONS if settings.is_open else CONNECTIONS)
    allow_files(connections + FILES_BESIDE)
    calm_gc()

    warm_up_ns = 0 if work.plan else int(settings.warm_up_s * 1e9)
    duration_ns = work.plan_ns or int((settings.duration_s or DURATION_S) * 1e9)
    cpu_s = _cpu_s()
    begin_ns = clock.now_ns() + (LEAD_NS if settings.is_open else 0)
    progress = Progress(begin_ns + warm_up_ns, begin_ns + warm_up_ns + duration_ns)
    tally = Tally(progress.from_ns)
    driver: Driver
    if settings.is_open:
        plan = work.plan or _plan(settings, work.requests, warm_up_ns + duration_ns)
        driver = OpenLoop(
            target, plan, tally, progress,
            begin_ns=begin_ns, connections_max=connections, timeout_s=settings.timeout_s,
        )  # fmt: skip
    else:
        turns = itertools.cycle(work.requests)
        driver = ClosedLoop(target, turns, tally, progress, connections=connections, timeout_s=settings.timeout_s)
    with watch(progress, tally):
        unfinished = await driver.finish(stop)
    ended_ns = clock.now_ns()
    return Results(
        server=server,
        target=target.url,
        models=tuple(m.name for m in work.models),
        binary=work.binary,
        connections_max=connections,
        connections_most=driver.connections_most,
        is_open=settings.is_open,
        tally=tally,
        elapsed_s=max(1, max(tally.last_done_ns, min(ended_ns, progress.until_ns)) - progress.from_ns) / 1e9,
        unfinished_count=unfinished,
        broken_off=stop.is_set(),
        generator_cores=(_cpu_s() - cpu_s) / max(1e-9, (ended_ns - begin_ns) / 1e9),
    )


def _plan(settings: Settings, requests: list[Request], length_ns: int) -> Iterator[tuple[int, Request]]:
    instants = schedule(
        settings.arrivals,
        rate_per_s=settings.rate_per_s,
        duration_ns=length_ns,
        burst_mean=settings.burst_mean,
        seed=settings.seed,
    )
    return zip(instants, itertools.cycle(requests), strict=False)


async def _work(settings: Settings, target: Target) -> _Work:
    model = await discover.model_of(target, settings.headers, settings.model, settings.version)
    rows, rows_max = settings.shape.rows, model.rows_max
    if rows_max is not None and rows > max(1, rows_max):
        most = f"at most {rows_max} rows" if rows_max else "no rows: it has no batch dimension"
        raise CannotMeasure(f"--rows {rows}: a request for model '{model.name}' has {most}")
    sender = _sender(settings, target, model)
    if settings.data:
        requests = from_file(settings.data, sender, rows)
    else:
        requests = made_up(Maker(model, settings.shape, settings.seed), sender)
    return _Work((model,), sender.binary, requests[0], requests)


async def _recorded_work(settings: Settings, target: Target) -> _Work:
    recorded = replay.read(settings.replay, model=settings.model, since_us=settings.since_us)
    requests = {}
    models = {}
    binary = settings.binary
    for name in dict.fromkeys(r.model for r in recorded):
        models[name] = model = await discover.model_of(target, settings.headers, name, settings.version)
        maker, sender = Maker(model, settings.shape, settings.seed), _sender(settings, target, model)
        for size in dict.fromkeys(r.size for r in recorded if r.model == name):
            requests[name, size] = replay.request_of(size, maker, sender)
        binary = binary or sender.binary
    duration_ns = int(settings.duration_s * 1e9)
    plan = replay.planned(recorded, requests, speed=settings.speed, duration_ns=duration_ns)
    plan_ns = round(recorded[-1].at_ns / settings.speed) + 1
    first = requests[recorded[0].model, recorded[0].size]
    plan_ns = min(plan_ns, duration_ns) if duration_ns else plan_ns
    return _Work(tuple(models.values()), binary, first, [], plan, plan_ns)


def _sender(settings: Settings, target: Target, model: ModelSpec) -> Sender:
    return Sender(target, model, settings.binary or model.must_be_binary, settings.headers)


def _cpu_s() -> float:
    """CPU time of this process so far."""
    times = os.times()
    return times.user + times.system


def allow_files(count: int) -> None:
    """Raise the limit of open files as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (count if hard == resource.RLIM_INFINITY else min(count, hard), hard)
            )
