"""The protocol's own tests, which run on real servers, hold on the model as well."""

import inspect

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

_NEED_A_SERVER = {"own_loop", "proxy", "through", "redis_server", "impatient", "short_dir", "oldest_server"}
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
