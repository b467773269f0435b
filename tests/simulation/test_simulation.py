"""Seeds by the thousand: whatever goes wrong, each request ends once, in time and rightly, and nothing stays behind."""

import gc
import os
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from simulation.run import run

from shared import clock

SECONDS = float(os.environ.get("SIMULATION_SECONDS", "100"))
FIRST = int(os.environ.get("SIMULATION_SEED", "1"))
"""Where to begin; each run goes on from there as far as the time reaches."""
SURE_COUNT = 20
"""So many seeds run in any case, on each core."""
NICE = 10
"""The seeds leave the cores to tests beside them, which wait for real processes."""
ENOUGH_COUNT = 3
"""So many failing seeds are enough to look at."""


@pytest.mark.timeout(SECONDS + 240)
def test_every_seed_keeps_the_promises() -> None:
    """Each accepted request has exactly one right answer or an honest error, and Redis is clean afterwards."""
    cores = len(os.sched_getaffinity(0))
    until_ns = clock.now_ns() + int(SECONDS * 1e9)
    # Fresh processes: what runs here (an event loop, threads of other tests) must not be there a second time.
    with ProcessPoolExecutor(cores, get_context("spawn"), initializer=os.nice, initargs=(NICE,)) as pool:
        parts = list(pool.map(run_seeds, range(FIRST, FIRST + cores), [cores] * cores, [until_ns] * cores))
    print(f"{sum(count for count, _ in parts)} seeds")
    failed = [text for _, texts in parts for text in texts]
    assert not failed, "\n" + "\n".join(failed)


def run_seeds(first: int, step: int, until_ns: int) -> tuple[int, list[str]]:
    """Run every `step`th seed until an instant. Returns how many, and what was wrong with those that failed."""
    gc.disable()  # a run makes much garbage in circles; looking for it all the time takes a tenth of the time
    failed: list[str] = []
    count = 0
    while (count < SURE_COUNT or clock.now_ns() < until_ns) and len(failed) < ENOUGH_COUNT:
        seed = first + count * step
        try:
            violations = run(seed).auditor.violations
        except Exception as e:
            violations = [f"{type(e).__name__}: {e}"]
        if violations:
            told = [f"seed {seed}; replay with: python tests/simulation {seed} -v", *violations[:5]]
            failed.append("\n  ".join(told))
        count += 1
        if count % 20 == 0:
            gc.collect()
    return count, failed


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
