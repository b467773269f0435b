"""Record runs: start a system, let it serve, let something happen to it, keep its log, and write down what happened.

A run has four phases: warm-up, baseline, fault, recovery. When the fault begins varies by seed, so that nobody can
learn the moment. The log is kept as archives, the truth beside it (`labels.py`). What was recorded is not recorded
again.
"""

import asyncio
import contextlib
import os
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.connections import target_of
from bench.lineup import impact, labels, machine, repository, runs
from bench.lineup.calibration import Speed
from bench.lineup.clients import Clients, Ended
from bench.lineup.labels import Labels, Truth, Window
from bench.lineup.runs import Run
from bench.lineup.scenario import CLEAN, Impact
from bench.lineup.stack import Plan, Stack
from bench.lineup.traffic import Traffic
from bench.load import Progress
from bench.tally import Tally
from forensics.compact import compact
from forensics.store import open_store
from shared import clock

LEAD_NS = 100_000_000
JITTER = 0.1
"""The baseline is longer or shorter by up to this share, the recovery makes up for it."""
ANSWERS_S = 15.0
"""So long the last requests may take, once no more are sent."""
SETTLE_S = 0.3
"""The log's writers flush more often than this."""


@dataclass(slots=True)
class _Recorded:
    """What is known when a run is over, and its processes have ended."""

    truth: Truth
    window: Window
    started_us: int
    ended_us: int
    ended: list[Ended]
    baseline: dict[str, Any]
    fault: dict[str, Any]
    tries_count: int


async def record(run: Run, out: Path, speed: Speed) -> Labels:
    """Record one run into `out`. Raises StackFailed, CallFailed, TimeoutError; then nothing is kept."""
    directory = Path(tempfile.mkdtemp(prefix="tr-"))
    try:
        recorded = await _live(run, directory, speed)
        kept = out / "logs" / run.id
        shutil.rmtree(kept, ignore_errors=True)
        compact([directory / "logs"], kept)
        found = _labels(run, recorded, kept)
        labels.write(found, out / "labels" / f"{run.id}.json")
        return found
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _live(run: Run, directory: Path, speed: Speed) -> _Recorded:
    rng = random.Random(run.seed)
    async with started(run, directory, speed, rng) as stack:
        s = run.seconds
        shift_s = s.baseline * rng.uniform(-JITTER, JITTER)
        begin_ns = clock.now_ns() + LEAD_NS
        at_ns = [begin_ns + round(x * 1e9) for x in (0.0, s.warm_up, s.warm_up + s.baseline + shift_s)]
        at_ns += [at_ns[2] + round(s.fault * 1e9), begin_ns + round(s.total * 1e9)]
        async with sending(stack, begin_ns, at_ns[4]) as (sent, stop):
            return await _phases(run, stack, rng, at_ns, sent, stop)


@contextlib.asynccontextmanager
async def started(
    run: Run, directory: Path, speed: Speed, rng: random.Random, *, standbys: int = 0
) -> AsyncIterator[Stack]:
    """The stack of a run, ready, and its traffic planned; so many more workers wait. Raises StackFailed, CallFailed."""
    scenario, background = run.scenario, run.background
    model = repository.make(
        directory / "models", background, {**speed.options(background.model), "threads": background.threads},
        model=scenario.model, beside=run.path.parent, rng=rng,
    )  # fmt: skip
    plan = Plan(
        repository=directory / "models",
        module=run.path,
        workers=background.workers,
        standbys=scenario.standbys + standbys,
        helpers=max(scenario.helpers, int(scenario.proxied)),
        threads=background.threads,
        proxied=scenario.proxied,
        supervised=scenario.supervised,
        worker_environment=scenario.worker_environment,
    )
    async with Stack(directory, plan) as stack:
        if scenario.prepare is not None and not run.twin:
            await scenario.prepare(stack, scenario.strength_at(run.share))
        target = target_of(stack.url)
        stack.traffic = Traffic(background, authority=target.authority, model=model, seed=run.traffic_seed)
        yield stack


@contextlib.asynccontextmanager
async def sending(stack: Stack, begin_ns: int, end_ns: int) -> AsyncIterator[tuple["asyncio.Task[int]", asyncio.Event]]:
    """The clients of a stack send from one instant to the other. The task ends soon after the event is set."""
    tally, progress = Tally(begin_ns), Progress(begin_ns, end_ns)
    stack.clients = Clients(
        target_of(stack.url), stack.traffic, tally, progress, begin_ns=begin_ns, length_ns=end_ns - begin_ns
    )
    stop = asyncio.Event()
    sent = asyncio.create_task(stack.clients.finish(stop))
    try:
        yield sent, stop
    finally:
        sent.cancel()
        await asyncio.gather(sent, return_exceptions=True)


async def _phases(
    run: Run, stack: Stack, rng: random.Random, at_ns: Sequence[int], sent: "asyncio.Task[int]", stop: asyncio.Event
) -> _Recorded:
    offset_us = clock.wall_us() - clock.now_ns() // 1000
    truth = Truth()
    await until(at_ns[1])
    pids = [p.pid for p in (stack.gateway, *stack.workers, *stack.standbys)]
    if stack.redis.process is not None:
        pids.append(stack.redis.process.pid)
    pids.append(os.getpid())
    readings = [machine.read(pids)]
    await until(at_ns[2])
    readings.append(machine.read(pids))
    if run.twin:
        started_us = clock.wall_us()
        await until(at_ns[3])
    else:
        async with run.scenario.inject(stack, rng, run.scenario.strength_at(run.share), truth):
            started_us = clock.wall_us()
            await until(at_ns[3])
    ended_us = clock.wall_us()
    readings.append(machine.read(pids))
    await until(at_ns[4])
    await finish(sent, stop)
    if truth.culprit_kind in ("worker", "gateway"):
        truth.culprit_ids = [stack.inst_of(int(pid)) or pid for pid in truth.culprit_ids]
    truth.processes = [stack.inst_of(int(pid)) or pid for pid in truth.processes]
    at_us = [ns // 1000 + offset_us for ns in at_ns]
    return _Recorded(
        truth=truth,
        window=Window(
            warm_up_us=at_us[0], baseline_us=at_us[1], fault_us=at_us[2], recovery_us=at_us[3], end_us=at_us[4]
        ),
        started_us=truth.started_unix_us or started_us,
        ended_us=ended_us,
        ended=stack.clients.ended,
        baseline=machine.between(readings[0], readings[1]),
        fault=machine.between(readings[1], readings[2]),
        tries_count=stack.clients.tries_count,
    )


async def finish(sent: "asyncio.Task[int]", stop: asyncio.Event) -> None:
    """Wait for the last answers, and for the log."""
    await asyncio.wait([sent], timeout=ANSWERS_S)
    stop.set()
    await sent
    await asyncio.sleep(SETTLE_S)


def _labels(run: Run, recorded: _Recorded, logs: Path) -> Labels:
    scenario, truth, window = run.scenario, recorded.truth, recorded.window
    with open_store([logs]) as store:
        rows = store.rows("SELECT epoch_us(started_at), e2e_ns / 1e6 FROM requests WHERE route = 'infer' ORDER BY 1")
    at_us, ms = [row[0] for row in rows], [row[1] for row in rows]
    before, during = (window.baseline_us, window.fault_us), (window.fault_us, window.recovery_us)
    rises = {f: impact.rise(at_us, ms, before=before, during=during, figure=f) for f in ("p50", "p99")}
    figure = scenario.impact.value if scenario.is_fault else Impact.P99.value
    expected = scenario.cause if not scenario.is_fault or rises[figure].is_real else CLEAN
    ids = {ended.sent.label: ended.id for ended in recorded.ended if ended.id}
    if truth.culprit_kind == "request":
        special = truth.request_labels or [e.sent.label for e in recorded.ended if e.sent.special]
        truth.culprit_ids += [ids[label] for label in special if label in ids]
    late_ms = sorted((e.sent_ns - e.intended_ns) / 1e6 for e in recorded.ended if e.sent_ns)
    late_p99_ms = late_ms[int(0.99 * len(late_ms))] if late_ms else 0.0
    failed = sum(ended.status != 200 for ended in recorded.ended)
    return Labels(
        run=run.id,
        scenario=run.path.stem,
        scenario_sha256=runs.sha256_of(run.path),
        cause=scenario.cause,
        family=scenario.family,
        mechanism=scenario.mechanism,
        expected=CLEAN if run.twin else expected,
        lookalikes=list(scenario.lookalikes),
        segments=list(scenario.segments),
        started_unix_us=recorded.started_us,
        ended_unix_us=recorded.ended_us,
        window=window,
        period_s=truth.period_s,
        culprit_kind=truth.culprit_kind,
        culprit_ids=truth.culprit_ids,
        processes=truth.processes,
        episodes=truth.episodes,
        strength=scenario.strength_at(run.share),
        share=run.share,
        background=run.entry()["background"],
        seed=run.seed,
        pair=run.pair,
        twin=run.twin,
        impact={"figure": figure, **{name: value.to_json() for name, value in rises.items()}},
        machine={"baseline": recorded.baseline, "fault": recorded.fault, "late_p99_ms": round(late_p99_ms, 3)},
        flags=machine.flags_of(recorded.baseline, late_p99_ms=late_p99_ms, p99_ms=rises["p99"].before_ms),
        facts={**truth.facts, "requests": len(recorded.ended), "failed": failed, "retries": recorded.tries_count},
    )


async def record_all(
    wanted: Sequence[Run], out: Path, speed: Speed, *, again: bool = False, say: Callable[[str], None] = print
) -> int:
    """Record what is not there yet, one after the other; returns how many failed."""
    todo = [run for run in wanted if again or not (out / "labels" / f"{run.id}.json").exists()]
    began_ns, failures = clock.now_ns(), 0
    say(f"{len(wanted)} runs, {len(wanted) - len(todo)} of them recorded before")
    for number, run in enumerate(todo, 1):
        title = f"[{number}/{len(todo)}] {run.id} {run.path.stem} on {run.background.name}, share {run.share:.2f}"
        try:
            say(f"{title}: {_shown(await record(run, out, speed))}")
            (out / "failed" / f"{run.id}.txt").unlink(missing_ok=True)
        except Exception as e:
            failures += 1
            (out / "failed").mkdir(parents=True, exist_ok=True)
            (out / "failed" / f"{run.id}.txt").write_text(f"{title}\n{type(e).__name__}: {e}\n")
            say(f"{title}: FAILED: {type(e).__name__}: {str(e)[-2000:]}")
        taken_s = (clock.now_ns() - began_ns) / 1e9
        left_s = taken_s / number * (len(todo) - number)
        say(f"    {taken_s:.0f} s so far, about {left_s:.0f} s to go")
    if todo:
        say(f"{len(todo)} runs in {(clock.now_ns() - began_ns) / 1e9:.0f} s, {failures} of them failed")
    return failures


def _shown(found: Labels) -> str:
    rise = found.impact[found.impact["figure"]]
    text = f"{rise['figure']} {rise['before_ms']:.1f} -> {rise['during_ms']:.1f} ms, expected {found.expected}"
    if found.facts["failed"]:
        text += f", {found.facts['failed']} of {found.facts['requests']} requests failed"
    return text + (f"; FLAGGED: {'; '.join(found.flags)}" if found.flags else "")


async def until(at_ns: int) -> None:
    """Sleep until an instant."""
    await asyncio.sleep(max(0, at_ns - clock.now_ns()) / 1e9)
