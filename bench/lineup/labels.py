"""The truth about a run, which lies beside its log and never in it."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shared import clock

VERSION = 1


@dataclass(slots=True)
class Truth:
    """What an injection knows of itself; its `inject` fills it in while it works.

    `culprit_kind` says what `culprit_ids` are: worker, gateway, request, redis. Those of requests are filled in by the
    recorder, from `request_labels`, or else from all requests that the traffic calls special. Episodes are (start, end)
    on the wall clock, us.
    """

    period_s: float = 0.0
    culprit_kind: str = ""
    culprit_ids: list[str] = field(default_factory=list)
    request_labels: list[str] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)
    """Names, in the log, of the processes in which it happens."""
    episodes: list[tuple[int, int]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """What else is worth knowing, such as how many objects were held."""
    started_unix_us: int = 0
    """When the fault began, if it was not when `inject` had begun."""

    def begins(self) -> int:
        """An episode begins now; the number that `ends` takes."""
        self.episodes.append((clock.wall_us(), 0))
        return len(self.episodes) - 1

    def ends(self, number: int) -> None:
        """It is over."""
        self.episodes[number] = (self.episodes[number][0], clock.wall_us())


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The phases of a run on the wall clock, us."""

    warm_up_us: int
    baseline_us: int
    fault_us: int
    recovery_us: int
    end_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The truth about one run. `expected` is what a perfect diagnosis names: the cause, or `clean`."""

    run: str
    version: int = VERSION
    scenario: str
    scenario_sha256: str
    cause: str
    family: str
    mechanism: str
    expected: str
    lookalikes: list[str]
    segments: list[str]
    started_unix_us: int
    ended_unix_us: int
    window: Window
    period_s: float
    culprit_kind: str
    culprit_ids: list[str]
    processes: list[str]
    episodes: list[tuple[int, int]]
    strength: dict[str, float]
    share: float
    background: dict[str, Any]
    seed: int
    pair: str
    """Runs with the same value had the same traffic, but for what a fault changed."""
    twin: bool
    impact: dict[str, Any]
    machine: dict[str, Any]
    flags: list[str]
    facts: dict[str, Any]

    @property
    def is_fault(self) -> bool:
        """A cause is to be named."""
        return self.expected not in ("clean", "decoy")


def write(labels: Labels, path: Path) -> None:
    """Write them, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(asdict(labels), indent=1) + "\n")
    beside.replace(path)


def read(path: Path) -> Labels:
    """Read them."""
    values = json.loads(path.read_text())
    values["window"] = Window(**values["window"])
    values["episodes"] = [tuple(e) for e in values["episodes"]]
    return Labels(**values)


def read_all(directory: Path) -> list[Labels]:
    """The labels of a recorded set, by run."""
    return [read(path) for path in sorted((directory / "labels").glob("*.json"))]
