"""The protocol's own tests, which run on real servers, hold on the model as well."""

import asyncio
import inspect

import pytest
from broker import (
    test_fleet_directory,
    test_lifecycle,
    test_protocol,
    test_protocol_answers,
    test_protocol_audit,
    test_protocol_deaths,
    test_protocol_ends,
    test_protocol_fairness,
    test_protocol_faults,
    test_protocol_jobs,
    test_protocol_letters,
    test_protocol_limits,
    test_protocol_retries,
    test_protocol_suspects,
)
from broker.test_lifecycle import histories, runner, small_limits  # noqa: F401  (fixtures)
from simulation.direct import DirectConnection
from support.lifecycle import Lifecycle

from shared.broker import scripts

_NEED_A_SERVER = {
    "redis_servers",
    "tmp_path_factory",
    "proxy",
    "through",
    "redis_server",
    "impatient",
    "short_dir",
    "oldest_server",
}
_MODULES = (
    test_fleet_directory,
    test_lifecycle,
    test_protocol,
    test_protocol_answers,
    test_protocol_audit,
    test_protocol_deaths,
    test_protocol_ends,
    test_protocol_fairness,
    test_protocol_faults,
    test_protocol_jobs,
    test_protocol_letters,
    test_protocol_limits,
    test_protocol_retries,
    test_protocol_suspects,
)

for _module in _MODULES:
    for _name, _test in vars(_module).items():
        if _name.startswith("test_") and not _NEED_A_SERVER & set(inspect.signature(_test).parameters):
            globals()[_name] = _test


@pytest.mark.usefixtures("small_limits")
def test_every_history_leads_to_the_same_state_on_the_model(runner: asyncio.Runner) -> None:  # noqa: F811
    """The state machine that real servers obey."""

    async def connect() -> DirectConnection:
        c = DirectConnection()
        await scripts.load_all(c)
        return c

    c = runner.run(connect())
    histories(lambda: Lifecycle(runner, {"model": c}), count=8, steps=60)
