"""`tailrace up --workers auto`: how many workers with how many torch threads each suit these models on this machine.

The answer is measured (`bench.bare`) and kept in the data directory, under everything it depends on: the models'
files, the versions of torch and tailrace, the processor and how many cores we may use. How many workers there is memory
for is asked at each start. A model that one worker of one thread answers faster than a gateway can ask has no say.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from bench.about import cpu_name
from bench.bare import Crew, batch_sizes, measure
from bench.bare_cells import ONE, Cell, Choice, Way, best_rates, choose, ways
from bench.bare_memory import most_workers
from bench.bare_protocol import Loaded, Setup
from shared import clock, humanlog
from shared.vitals import usable_cores

BUDGET_S = 6.0
"""About how long a model is measured, not counting that it is loaded and how long a pass that has begun takes."""
BATCHES = (1, 8)
ROUNDS = 3
LENGTH_MIN_S = 0.05
PROBE_S = 0.3
GATEWAY_PER_S = 10_000.0
"""More requests a second than a gateway hands over (bench/README.md): faster than that, a model waits for others."""
QUICK_PER_S = GATEWAY_PER_S / 32
"""A model slower than this one by one would not be as fast in batches."""
WORKERS_MAX = 32
"""Each is a process that must be started to be measured."""
KEPT_MAX = 16
FILE = "cores.json"


class Rate(msgspec.Struct, frozen=True):
    """What one way did at its best batch size: requests a second."""

    workers: int
    threads: int
    per_s: float


class Measured(msgspec.Struct, frozen=True):
    """What is kept: the rates of each model that has a say, by label, and what a process takes."""

    rates: dict[str, list[Rate]]
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class Found:
    """The way to go. `workers_max` is how many workers there is memory for."""

    choice: Choice
    workers_max: int
    remembered: bool
    measured: Measured


async def find(repository: str, models: tuple[str, ...], *, threads: int, data_dir: Path) -> Found:
    """Look it up, or measure it; says so in the log for people. `threads` 0: any number. Raises CannotMeasure."""
    cores = usable_cores()
    file = data_dir / FILE
    key = key_of(repository_files(_directory(repository)), models, threads=threads, cores=cores)
    kept = read_kept(file)
    measured = kept.get(key)
    began_ns = clock.now_ns()
    if measured is None:
        setup = Setup(repository=repository, models=models, all_versions=True)
        measured = await _measure(setup, candidates(cores, threads=threads), cores=cores)
        write_kept(file, {**kept, key: measured})
    workers_max = min(WORKERS_MAX, most_workers(measured.rss_bytes))
    found = Found(decide(measured, threads=threads, workers_max=workers_max), workers_max, key in kept, measured)
    way, source = found.choice.way, "remembered" if found.remembered else "measured"
    seconds = round((clock.now_ns() - began_ns) / 1e9, 1)
    humanlog.get().info(
        "chose workers", workers=way.workers, threads=way.threads, source=source, seconds=seconds, why=why(found)
    )
    return found


def decide(measured: Measured, *, threads: int, workers_max: int) -> Choice:
    """The best way by what was measured, with at most so many workers."""
    rates = {label: {Way(r.workers, r.threads): r.per_s for r in of} for label, of in measured.rates.items()}
    choice = choose(rates, workers_max=workers_max)
    if not rates and threads:
        return Choice(Way(1, threads), 1.0, Way(1, threads))
    return choice


def why(found: Found) -> str:
    """The reason in a few words, with figures."""
    way = found.choice.way
    if not found.measured.rates:
        return "nothing to choose between" if not found.measured.rss_bytes else "more would wait for the gateway"
    told = []
    for label, rates in found.measured.rates.items():
        of = {Way(r.workers, r.threads): r.per_s for r in rates}
        alone = f" (1 x 1: {of[ONE]:.4g})" if ONE in of and way != ONE else ""
        told.append(f"{label} {of.get(way, 0.0):.4g} requests/s{alone}")
    if found.workers_max < max(r.workers for of in found.measured.rates.values() for r in of):
        told.append(f"there is memory for {found.workers_max}")
    return ", ".join(told)


def candidates(cores: int, *, threads: int) -> list[Way]:
    """The ways that are measured."""
    return [way for way in ways(cores, threads=(threads,) if threads else ()) if way.workers <= WORKERS_MAX]


async def _measure(setup: Setup, among: list[Way], *, cores: int) -> Measured:
    if len(among) < 2:
        return Measured({}, 0)
    humanlog.get().info("measuring how many workers suit these models", cores=cores)
    async with Crew(setup, cores=cores) as crew:
        fitting = [way for way in among if way.workers <= most_workers(crew.rss_bytes, running=1)]
        rates: dict[str, list[Rate]] = {}
        for model in crew.models if len(fitting) > 1 else []:
            if cells := await _measure_model(crew, model, fitting):
                rates[model.label] = [Rate(*way, per_s) for way, per_s in best_rates(cells).items()]
        return Measured(rates, crew.rss_bytes)


async def _measure_model(crew: Crew, model: Loaded, among: list[Way]) -> list[Cell]:
    """The cells of a model; none when it is so quick that it has no say."""
    until_ns = clock.now_ns() + int(BUDGET_S * 1e9)
    sizes = batch_sizes(model, BATCHES)
    single = await crew.sample(model.label, ONE, 1, length_s=PROBE_S)
    if single.per_s >= QUICK_PER_S:
        [*_, most] = batch_sizes(model, (1, 32))
        if (await crew.sample(model.label, ONE, most, length_s=PROBE_S)).per_s >= GATEWAY_PER_S:
            return []
    length_s = max(LENGTH_MIN_S, (BUDGET_S - PROBE_S) / (ROUNDS * len(among) * len(sizes)))
    if single.durations_ns[0] > 1e9 * length_s:
        sizes = sizes[:1]  # a slow model: larger batches would take minutes
    return await measure(crew, model.label, among, sizes, rounds=ROUNDS, length_s=length_s, until_ns=until_ns)


# -- what is kept -------------------------------------------------------------------------------------------------


def _directory(repository: str) -> Path:
    # Not by asking worker.models.repository, which would load torch.
    return Path(repository) if repository else Path(__file__).parents[1] / "worker" / "models" / "demo"


def repository_files(directory: Path) -> list[tuple[str, int, int]]:
    """Name, bytes and time of change (ns) of each file of a model repository: when a model changes, this does."""
    found = []
    for path in sorted(directory.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            stat = path.stat()
            found.append((str(path.relative_to(directory)), stat.st_size, stat.st_mtime_ns))
    return found


def key_of(
    files: list[tuple[str, int, int]], models: tuple[str, ...], *, threads: int, cores: int, cpu: str = ""
) -> str:
    """A name for all that the measurement depends on."""
    versions = [metadata.version(name) for name in ("torch", "tailrace")]
    what: list[Any] = [files, list(models), threads, cores, cpu or cpu_name(), versions]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:32]


def read_kept(file: Path) -> dict[str, Measured]:
    """What earlier starts measured, by key, the oldest first; nothing when there is none, or it cannot be read."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Measured])
    except (OSError, msgspec.DecodeError):
        return {}


def write_kept(file: Path, kept: Mapping[str, Measured]) -> None:
    """Keep the newest. A directory that cannot be written to costs the next start a measurement, nothing else."""
    newest = dict(list(kept.items())[-KEPT_MAX:])
    fresh = file.with_suffix(".new")
    try:
        fresh.write_bytes(msgspec.json.format(msgspec.json.encode(newest), indent=1))
        fresh.replace(file)
    except OSError as e:
        humanlog.get().warning("what was measured cannot be kept", file=str(file), reason=e.strerror)
