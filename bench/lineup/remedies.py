"""Does the cure work that a diagnosis prints? A fault is injected, and cured while it goes on.

For each cause whose scenario has a `cure`. The figure is that by which the fault is judged (p99; p50 where everything
gets slower); a cure works if it is back within a fifth of what it was before the fault.
"""

import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.lineup.calibration import Speed
from bench.lineup.labels import Truth
from bench.lineup.recorder import LEAD_NS, sending, started, until
from bench.lineup.runs import Run
from forensics.diagnose.catalogue import CAUSES
from shared import clock

WITHIN = 0.2
BASELINE_S, FAULT_S, SETTLE_S, CURED_S = 20.0, 15.0, 6.0, 20.0
"""Queues that have grown run empty while it settles."""
WARM_UP_S = 3.0
CUT_NS = 1_000_000_000
"""What was under way when the run was broken off has no answer, so the last second does not count."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A cure that was tried: the figure before the fault, during it, and after the cure, ms."""

    cause: str
    scenario: str
    background: str
    printed: str
    done: str
    figure: str
    baseline_ms: float
    fault_ms: float
    cured_ms: float

    @property
    def hurt(self) -> bool:
        """The fault made it worse by more than a cure may leave."""
        return self.fault_ms > (1 + WITHIN) * self.baseline_ms

    @property
    def works(self) -> bool:
        """It is back where it was."""
        return self.cured_ms <= (1 + WITHIN) * self.baseline_ms

    def to_json(self) -> dict[str, Any]:
        """As a value ready for JSON."""
        return asdict(self) | {"hurt": self.hurt, "works": self.works}


async def try_cure(run: Run, speed: Speed) -> Tried:
    """Baseline, fault, cure. Raises StackFailed, CallFailed, TimeoutError."""
    scenario, rng = run.scenario, random.Random(run.seed)
    assert scenario.cure is not None
    strength = scenario.strength_at(run.share)
    with tempfile.TemporaryDirectory(prefix="tr-") as name:
        async with started(run, Path(name), speed, rng, standbys=scenario.cure_standbys) as stack:
            begin_ns = clock.now_ns() + LEAD_NS
            fault_ns = begin_ns + round((WARM_UP_S + BASELINE_S) * 1e9)
            # A cure may have to start a process, so what follows it is counted from its end.
            latest_ns = fault_ns + round((FAULT_S + SETTLE_S + CURED_S + 30) * 1e9)
            async with sending(stack, begin_ns, latest_ns) as (sent, stop):
                await until(fault_ns)
                async with scenario.inject(stack, rng, strength, Truth()):
                    await until(fault_ns + round(FAULT_S * 1e9))
                    cure_ns = clock.now_ns()
                    await scenario.cure(stack, strength)
                    settled_ns = clock.now_ns() + round(SETTLE_S * 1e9)
                    end_ns = settled_ns + round(CURED_S * 1e9)
                    await until(end_ns)
                stop.set()
                await sent
            ended = stack.clients.ended
    at = np.array([e.intended_ns for e in ended])
    ms = np.array([(e.done_ns - e.intended_ns) / 1e6 for e in ended])
    quantile = {"p50": 0.5, "p99": 0.99}[scenario.impact.value]

    def figure(since_ns: int, until_ns: int) -> float:
        return round(float(np.quantile(ms[(at >= since_ns) & (at < until_ns)], quantile)), 3)

    return Tried(
        cause=scenario.cause,
        scenario=run.path.stem,
        background=run.background.name,
        printed=CAUSES[scenario.cause].remedy,
        done=(scenario.cure.__doc__ or "").strip(),
        figure=scenario.impact.value,
        baseline_ms=figure(begin_ns + round(WARM_UP_S * 1e9), fault_ns),
        fault_ms=figure(fault_ns, cure_ns),
        cured_ms=figure(settled_ns, end_ns - CUT_NS),
    )


async def try_all(wanted: Sequence[Run], speed: Speed, *, say: Callable[[str], None] = print) -> list[Tried]:
    """One after the other; those whose fault did not hurt say nothing of their cure, and are told as such."""
    found = []
    for run in wanted:
        try:
            tried = await try_cure(run, speed)
        except Exception as e:
            say(f"{run.path.stem}: FAILED: {type(e).__name__}: {e}")
            continue
        found.append(tried)
        verdict = ("works" if tried.works else "does NOT work") if tried.hurt else "nothing to cure"
        say(
            f"{tried.cause} on {tried.background}: {tried.figure} {tried.baseline_ms:.1f} -> {tried.fault_ms:.1f} -> "
            f"{tried.cured_ms:.1f} ms: {verdict} ({tried.done})"
        )
    hurt = [tried for tried in found if tried.hurt]
    say(f"{sum(tried.works for tried in hurt)} of {len(hurt)} cures work")
    return found
