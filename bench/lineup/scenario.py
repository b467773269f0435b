"""What a scenario is: a Python file that says what goes wrong, where it must show, and how to make it go wrong.

Theory of operation. A scenario file defines `SCENARIO`, a `Scenario`. Its `inject` is an async context manager that the
recorder enters when the fault shall begin and leaves when it shall end; in between traffic goes on. `inject(stack,
rng, strength, truth)` acts from outside (signals, another process' work, the traffic), or calls functions of its own
file inside of the gateway, the workers or helper processes: `await stack.workers[0].call("begin", pause_ms=80)` runs
`begin(inside, pause_ms=80)` of the scenario's file there (`inside.py`). So whoever adds a cause, or another mechanism
of one, writes a file and changes nothing else. What only the injection knows (which request was the culprit, when each
episode was) goes into `truth`.

Everything that varies comes from a seed. `strength` maps a name to a `Span`; the recorder picks a point of it, the same
for all names: 0 is mild, 1 is strong. `rng` gives the schedule.
"""

import hashlib
import hmac
import importlib.util
import random
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bench.lineup.backgrounds import ROWS, TEXTS, Background

if TYPE_CHECKING:
    from bench.lineup.labels import Truth
    from bench.lineup.stack import Stack

INJECTORS = Path(__file__).parent / "injectors"
CLEAN = "clean"
DECOY = "decoy"
DEVELOPMENT = b"development"
"""The secret of the development set, which is none: everybody may look at it."""

Strength = Mapping[str, float]
Inject = Callable[["Stack", random.Random, Strength, "Truth"], AbstractAsyncContextManager[None]]
Prepare = Callable[["Stack", Strength], Awaitable[None]]
Cure = Callable[["Stack", Strength], Awaitable[None]]


class ScenarioError(Exception):
    """A file is no scenario; says what was expected, and what is there."""


class Impact(StrEnum):
    """By which figure a fault must make requests slower, so that a diagnosis can be asked for it."""

    P99 = "p99"
    P50 = "p50"
    NONE = "none"
    """It must not: the scenario is harmless."""


@dataclass(frozen=True, slots=True)
class Span:
    """A quantity of a fault, from mild to strong. Both are positive: what lies between is spaced geometrically."""

    mild: float
    strong: float

    def at(self, share: float) -> float:
        """The value at a share of the way: 0 is mild, 1 is strong."""
        return float(self.mild * (self.strong / self.mild) ** share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A way in which something goes wrong, or in which nothing does.

    `segments`: where the excess may be found; the first is where most of it is. `lookalikes`: what a decoy looks like.
    """

    cause: str
    mechanism: str
    inject: Inject
    segments: tuple[str, ...] = ()
    strength: Mapping[str, Span] = field(default_factory=dict)
    prepare: Prepare | None = None
    """Runs before there is any traffic: what must be there long before the fault."""
    backgrounds: tuple[Background, ...] = (TEXTS, ROWS)
    impact: Impact = Impact.P99
    lookalikes: tuple[str, ...] = ()
    model: str = "bench.lineup.serving:Tokens"
    """The class of the model that is served: MODULE:NAME, or FILE.py:NAME of a file beside the scenario's."""
    worker_environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the workers are started with."""
    helpers: int = 0
    """Processes beside the stack in which functions of this file can be called."""
    standbys: int = 0
    """Workers that are started and loaded with the others, but serve only once they are told to."""
    cure: Cure | None = None
    """Does what the diagnosis prints as the cure, while what was injected goes on (`remedies.py`)."""
    cure_standbys: int = 0
    """Workers that wait for the cure, and are in no recording."""
    proxied: bool = False
    """The workers reach Redis through a helper (the first one), which `links.py` lets delay what passes."""
    supervised: bool = True
    """A worker that dies is started again, as `tailrace up` does."""

    @property
    def family(self) -> str:
        """The letter of the cause's family; of what is harmless the word itself."""
        return self.cause if self.cause in (CLEAN, DECOY) else self.cause[:1]

    @property
    def is_fault(self) -> bool:
        """False for what is harmless all in all."""
        return self.impact is not Impact.NONE

    def strength_at(self, share: float) -> dict[str, float]:
        """Every quantity at a share of the way from mild to strong."""
        return {name: span.at(share) for name, span in self.strength.items()}


def find(name: str) -> Path:
    """The file of a scenario: a path, the name of a file in `injectors/`, or a cause. Raises ScenarioError."""
    if name.endswith(".py"):
        path = Path(name)
        if not path.is_file():
            raise ScenarioError(f"there is no file {name}")
        return path.resolve()
    files = all_files()
    found = [f for f in files if f.stem == name] or [f for f in files if f.stem.split("_")[0] == name.lower()]
    if len(found) != 1:
        known = ", ".join(f.stem for f in files)
        what = f"means {', '.join(f.stem for f in found)}" if found else "is none of them"
        raise ScenarioError(f"'{name}' {what}; name a file (PATH.py) or one of {known}")
    return found[0]


def all_files() -> list[Path]:
    """The files of the scenarios that come with the lineup."""
    return sorted(f for f in INJECTORS.glob("*.py") if not f.stem.startswith("_"))


def load(path: Path) -> Scenario:
    """The scenario of a file. Raises ScenarioError."""
    found = getattr(load_module(path), "SCENARIO", None)
    if not isinstance(found, Scenario):
        raise ScenarioError(f"{path} must define SCENARIO, a bench.lineup.scenario.Scenario; it defines {found!r}")
    return found


def load_module(path: Path) -> ModuleType:
    """The module of a scenario's file. Raises ScenarioError."""
    name = f"_lineup_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ScenarioError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as e:
        del sys.modules[name]
        raise ScenarioError(f"{path} cannot be imported: {type(e).__name__}: {e}") from e
    return module


def seed_of(secret: bytes, *parts: Any) -> int:
    """A seed that nobody can guess who does not know the secret: HMAC-SHA256 over the parts, its first 8 bytes."""
    message = "/".join(map(str, parts)).encode()
    return int.from_bytes(hmac.new(secret, message, hashlib.sha256).digest()[:8])
