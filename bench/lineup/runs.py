"""Which runs a set has: each a scenario with a strength, a background and seeds, all of it derived from one secret.

The development set's secret is public. Of a held-out set only the hash of its manifest is published, before it is used;
whoever has the secret and the files of the scenarios can make the same manifest again.
"""

import hashlib
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.lineup.backgrounds import SIGNALS, Background
from bench.lineup.scenario import DEVELOPMENT, Impact, Scenario, all_files, find, load, seed_of

SHARES = (0.0, 1.0)
"""The strengths of the development set: mild and strong."""
STEADY = "clean_steady"
ID_CHARS = 10


@dataclass(frozen=True, slots=True)
class Seconds:
    """How long the phases of a run are; the first one is not looked at."""

    baseline: float = 15.0
    fault: float = 20.0
    recovery: float = 10.0
    warm_up: float = 3.0

    @property
    def total(self) -> float:
        """All of them."""
        return self.warm_up + self.baseline + self.fault + self.recovery


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run to be recorded. `share` of the way from mild to strong; `seed` makes the schedule of the fault,
    `traffic_seed` the requests. `twin`: nothing is injected, for a run with the same `pair` to be compared with."""

    id: str
    path: Path
    scenario: Scenario
    share: float
    background: Background
    seed: int
    traffic_seed: int
    seconds: Seconds
    twin: bool = False

    @property
    def pair(self) -> str:
        """Equal for runs with equal traffic."""
        return _digest({"background": _plain(self.background), "seed": self.traffic_seed})

    def entry(self) -> dict[str, Any]:
        """The run's line in a manifest."""
        return {
            "run": self.id,
            "scenario": self.path.stem,
            "sha256": sha256_of(self.path),
            "cause": self.scenario.cause,
            "share": self.share,
            "background": _plain(self.background),
            "seed": self.seed,
            "traffic_seed": self.traffic_seed,
            "seconds": asdict(self.seconds),
            "twin": self.twin,
        }


def development(names: Iterable[str] = (), *, seconds: Seconds | None = None) -> list[Run]:
    """Mild and strong on each background of each scenario; without names, of all that come with the lineup."""
    runs = []
    for path in _paths(names):
        scenario = load(path)
        for share in SHARES:
            for background in scenario.backgrounds:
                parts = (path.stem, share, background.name)
                runs.append(
                    Run(
                        id=_id(DEVELOPMENT, *parts),
                        path=path,
                        scenario=scenario,
                        share=share,
                        background=background,
                        seed=seed_of(DEVELOPMENT, *parts),
                        # Without the scenario: so each has the traffic of a run in which nothing happened.
                        traffic_seed=seed_of(DEVELOPMENT, "traffic", share, background.name),
                        seconds=seconds or Seconds(),
                    )
                )
    return sorted(runs, key=lambda run: run.id)


def held_out(
    secret: bytes, names: Iterable[str] = (), *, count: int, elsewhere: bool = False, seconds: Seconds | None = None
) -> list[Run]:
    """`count` runs a scenario with strength, background, rate and lengths drawn by HMAC(secret, index).

    `elsewhere`: on a background that the development set does not have, where the scenario does not insist on its own.
    """
    runs = []
    for path in _paths(names):
        scenario = load(path)
        for index in range(count):
            parts = (path.stem, index, elsewhere)
            rng = random.Random(seed_of(secret, "draw", *parts))
            share = rng.random()
            usual = Scenario.__dataclass_fields__["backgrounds"].default
            backgrounds = (SIGNALS,) if elsewhere and scenario.backgrounds == usual else scenario.backgrounds
            runs.append(
                Run(
                    id=_id(secret, *parts),
                    path=path,
                    scenario=scenario,
                    share=share,
                    background=rng.choice(backgrounds).varied(rng),
                    seed=seed_of(secret, *parts),
                    traffic_seed=seed_of(secret, "traffic", *parts),
                    seconds=seconds or Seconds(),
                )
            )
    return sorted(runs, key=lambda run: run.id)


def with_twins(runs: Sequence[Run], secret: bytes = DEVELOPMENT) -> list[Run]:
    """And for each kind of traffic one run in which nothing happens, where the set has none."""
    steady = find(STEADY)
    calm = {run.pair for run in runs if run.path == steady}
    twins: dict[str, Run] = {}
    for run in runs:
        if run.pair in calm or run.scenario.impact is Impact.NONE:
            continue
        own = _id(secret, "twin", run.pair)
        twins.setdefault(run.pair, replace(run, id=own, path=steady, scenario=load(steady), twin=True))
    return sorted((*runs, *twins.values()), key=lambda run: run.id)


def shard_of(runs: Sequence[Run], number: int, count: int) -> list[Run]:
    """The `number`th of `count` parts, from 1; their order by id is as good as random."""
    return list(runs[number - 1 :: count])


def manifest(runs: Sequence[Run]) -> dict[str, Any]:
    """The set as a value ready for JSON, with its own hash."""
    entries = [run.entry() for run in runs]
    return {"sha256": _digest(entries, whole=True), "runs": entries}


def sha256_of(path: Path) -> str:
    """The hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _paths(names: Iterable[str]) -> list[Path]:
    named = list(names)
    return [find(name) for name in named] if named else all_files()


def _id(secret: bytes, *parts: Any) -> str:
    return f"r{seed_of(secret, 'run', *parts):016x}"[: ID_CHARS + 1]


def _plain(background: Background) -> dict[str, Any]:
    return {**asdict(background), "mix": {type(background.mix).__name__: asdict(background.mix)}}  # type: ignore[call-overload]


def _digest(value: Any, *, whole: bool = False) -> str:
    digest = hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
    return digest if whole else digest[:16]
