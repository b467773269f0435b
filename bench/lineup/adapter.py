"""Whatever is scored, as a function from a log to a verdict: the one place that knows how a diagnosis is told."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared import clock

COMMAND = (sys.executable, "-m", "tailrace", "diagnose", "{logs}", "--json")
TIMEOUT_S = 300.0
UNKNOWN = ("", "unknown", "none", "clean")
"""What is told as a cause where none is known."""


class NoVerdict(Exception):
    """What came is no diagnosis; the text has what it was."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One of the causes named. `started_unix_us` 0: it is not said when it began."""

    cause: str
    confidence: float = 0.0
    family: str = ""
    segment: str = ""
    started_unix_us: int = 0
    culprits: frozenset[str] = frozenset()
    delta_p99_ms: float | None = None
    """What p99 would be less by without it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The causes named, the likeliest first. `unexplained_share`: of the tail's time, where it is said."""

    findings: tuple[Finding, ...] = ()
    text: str = ""
    unexplained_share: float | None = None
    took_s: float = 0.0

    @property
    def top(self) -> Finding | None:
        """The first finding that names a cause; None is an abstention."""
        first = self.findings[0] if self.findings else None
        return first if first is not None and first.cause.lower() not in UNKNOWN else None

    @property
    def place(self) -> Finding | None:
        """The first finding, which may say where it is without saying what it is."""
        return self.findings[0] if self.findings else None


Diagnose = Callable[[Path], Verdict]


@dataclass(frozen=True, slots=True)
class ByCommand:
    """Runs a command for each log; `{logs}` among its words is the folder."""

    words: Sequence[str] = COMMAND
    environment: Mapping[str, str] | None = field(default=None)

    def __call__(self, logs: Path) -> Verdict:
        """Raises NoVerdict."""
        words = [word.replace("{logs}", str(logs)) for word in self.words]
        began_ns = clock.now_ns()
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=TIMEOUT_S, env=self.environment, check=False
            )
        except subprocess.TimeoutExpired:
            raise NoVerdict(f"no verdict within {TIMEOUT_S:.0f} s: {' '.join(words)}") from None
        took_s = (clock.now_ns() - began_ns) / 1e9
        try:
            return parse(json.loads(done.stdout), took_s=took_s)
        except (ValueError, TypeError, KeyError, AttributeError) as e:
            told = (done.stderr or done.stdout).strip()[-500:]
            raise NoVerdict(f"status {done.returncode}, {type(e).__name__}: {e}; it said: {told}") from None


def parse(told: Mapping[str, Any], *, took_s: float = 0.0) -> Verdict:
    """Read `{"findings": [{"cause": "B1", "confidence": 0.9, ...}, ...], "verdict": "..."}`."""
    return Verdict(
        findings=tuple(_finding(f) for f in told["findings"]),
        text=str(told.get("verdict", "")),
        unexplained_share=told.get("unexplained_share"),
        took_s=took_s,
    )


def _finding(told: Mapping[str, Any]) -> Finding:
    cause = str(told.get("cause") or "")
    return Finding(
        cause=cause,
        confidence=float(told.get("confidence") or 0.0),
        family=str(told.get("family") or cause[:1]),
        segment=str(told.get("segment") or ""),
        started_unix_us=int(told.get("started_us") or 0),
        culprits=frozenset(_leaves(told.get("culprits") or {})),
        delta_p99_ms=None if told.get("delta_p99_ms") is None else float(told["delta_p99_ms"]),
    )


def _leaves(value: Any) -> Iterable[str]:
    """Every name in whatever culprits are told in: texts, lists, tables of them."""
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner)
    elif value is not None:
        yield str(value)
