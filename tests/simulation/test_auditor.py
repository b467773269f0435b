"""The simulation finds what is broken: each of these defects is noticed within some seeds."""

import asyncio
from typing import Any
from unittest.mock import patch

import pytest
from simulation.run import run

from gateway.submit import Submitter
from shared.broker import housekeeping
from worker.loop import WorkerLoop

SEEDS = range(1, 80)


async def _for_ever(*_: Any, **__: Any) -> None:
    await asyncio.Event().wait()


async def _nothing(*_: Any, **__: Any) -> None:
    return None


@pytest.mark.parametrize(
    ("where", "what", "instead", "noticed_as"),
    [
        pytest.param(housekeeping, "tick", _nothing, "ended only", id="nobody hands on what the dead held"),
        pytest.param(Submitter, "reconcile", _for_ever, "ended only", id="nobody asks for what was lost"),
        pytest.param(WorkerLoop, "drop", lambda *_: None, "no more its own", id="a worker does not listen"),
    ],
)
def test_a_defect_is_found(where: Any, what: str, instead: Any, noticed_as: str) -> None:
    """With a defect in the product some seed fails, and for the right reason."""
    with patch.object(where, what, instead):
        for seed in SEEDS:
            if any(noticed_as in violation for violation in run(seed).auditor.violations):
                return
    pytest.fail(f"{len(SEEDS)} seeds did not notice")
