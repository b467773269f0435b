"""Seeds by the hundred: whatever goes wrong, each request ends once, in time and rightly, and nothing stays behind."""

import gc
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from simulation.run import run

from shared import clock

SECONDS = float(os.environ.get("SIMULATION_SECONDS", "60"))
FIRST = int(os.environ.get("SIMULATION_SEED", "1"))
"""Where to begin; each run goes on from there as far as the time reaches."""
SURE_COUNT = 20
"""So many seeds run in any case."""
ENOUGH_COUNT = 3
"""So many failing seeds are enough to look at."""


@pytest.fixture
def collecting_seldom() -> Iterator[None]:
    """A run makes much garbage in circles; looking for it all the time takes a tenth of the time."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.timeout(SECONDS + 240)
@pytest.mark.usefixtures("collecting_seldom")
def test_every_seed_keeps_the_promises() -> None:
    """Each accepted request has exactly one right answer or an honest error, and Redis is clean afterwards."""
    until_ns = clock.now_ns() + int(SECONDS * 1e9)
    failed: list[str] = []
    seed = FIRST
    while (seed < FIRST + SURE_COUNT or clock.now_ns() < until_ns) and len(failed) < ENOUGH_COUNT:
        try:
            violations = run(seed).auditor.violations
        except Exception as e:
            violations = [f"{type(e).__name__}: {e}"]
        if violations:
            failed.append(
                "\n  ".join([f"seed {seed}; replay with: python tests/simulation {seed} -v", *violations[:5]])
            )
        if seed % 20 == 0:
            gc.collect()
        seed += 1
    print(f"{seed - FIRST} seeds")
    assert not failed, "\n" + "\n".join(failed)


def test_a_seed_is_always_the_same_story() -> None:
    """Equal seeds give equal traces, byte for byte."""
    first, second, other = run(7), run(7), run(8)
    assert first.trace.digest() == second.trace.digest()
    assert first.trace.digest() != other.trace.digest()


def test_a_seed_is_the_same_story_in_every_process() -> None:
    """Nothing depends on addresses or on how Python hashes texts: a seed that failed elsewhere fails here."""
    digests = [_replayed("5", "6", hash_seed=hash_seed) for hash_seed in ("1", "2")]
    assert digests[0] == digests[1]
    assert len(digests[0]) == 2


def _replayed(*seeds: str, hash_seed: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent), *seeds],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return re.findall(r"trace ([0-9a-f]{16})$", done.stdout, re.MULTILINE)
