"""All scripts in any order, with deaths, zombies and repetitions: every server holds what the model says."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from support.lifecycle import ACTS, CRASHES_MAX, LOSSES_MAX, READY_MAX, Lifecycle
from support.waiting import eventually, soon

from shared.broker import housekeeping, scripts
from shared.broker.connection import Connection
from shared.broker.embedded import EmbeddedRedis
from shared.lifecycle import MOVES, State, is_terminal

QUICK = (Phase.explicit, Phase.reuse, Phase.generate)
"""Without `Phase.shrink`, which runs the servers for minutes: add it by hand when a history fails."""


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A backlog begins after a few requests, and few crashes and losses are too many."""
    monkeypatch.setattr(scripts, "READY_MAX", READY_MAX)
    monkeypatch.setattr(housekeeping, "CRASHES_MAX", CRASHES_MAX)
    monkeypatch.setattr(housekeeping, "LOSSES_MAX", LOSSES_MAX)
    for cached in (scripts.source, scripts.sha):
        cached.cache_clear()
    yield
    monkeypatch.undo()
    for cached in (scripts.source, scripts.sha):
        cached.cache_clear()


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """An event loop that the state machine can step."""
    with asyncio.Runner() as runner:
        yield runner


async def connected(server: EmbeddedRedis) -> Connection:
    c = Connection(server.url, "lifecycle", on_connect=scripts.load_all)
    c.start()
    await soon(c.wait_connected())
    return c


def histories(machine: Callable[[], RuleBasedStateMachine], *, count: int, steps: int) -> None:
    limits = settings(max_examples=count, stateful_step_count=steps, deadline=None, phases=QUICK)
    run_state_machine_as_test(machine, settings=limits)  # type: ignore[no-untyped-call]


@pytest.mark.usefixtures("small_limits")
def test_every_history_leads_to_the_same_state_on_every_server(
    runner: asyncio.Runner, redis_servers: dict[str, EmbeddedRedis]
) -> None:
    """Legal moves only, one end each, fair turns, exact lengths and counters, in every order that was tried."""
    connections = {name: runner.run(connected(server)) for name, server in redis_servers.items()}
    try:
        histories(lambda: Lifecycle(runner, connections), count=20, steps=80)
    finally:
        for c in connections.values():
            runner.run(c.close())


class WithRestarts(Lifecycle):
    """Redis is killed now and then, and goes on with what it had written down."""

    def __init__(self, runner: asyncio.Runner, c: Connection, server: EmbeddedRedis) -> None:
        self.server = server
        super().__init__(runner, {"killed": c})

    acts = ACTS | {"restart": 3}

    def restart(self) -> None:
        async def restart() -> None:
            (scene,) = self.scenes.values()
            assert self.server.process is not None
            self.server.process.kill()
            await soon(self.server.process.wait())
            await eventually(lambda: not scene.c.connected, "the loss is noticed")
            await self.server.start()
            await soon(scene.c.wait_connected())

        self.runner.run(restart())


@pytest.mark.usefixtures("small_limits")
def test_no_history_is_cut_short_by_a_kill_of_redis(
    runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """kill -9 at any point, with an append-only file: what had been answered is there."""
    server = EmbeddedRedis(tmp_path_factory.mktemp("r"))
    runner.run(server.start())
    c = runner.run(connected(server))
    try:
        histories(lambda: WithRestarts(runner, c, server), count=5, steps=60)
    finally:
        runner.run(c.close())
        runner.run(server.stop())


def test_terminal_states_have_no_way_out() -> None:
    """The table itself: what is written once has no move; whatever lives can be cancelled, and expires."""
    ends = {State.DONE, State.FAILED, State.CANCELLED, State.EXPIRED, State.DEAD}
    assert {s for s in State if is_terminal(s)} == ends
    for state in set(State) - ends:
        assert MOVES[state] >= {State.CANCELLED, State.EXPIRED}
    for state in (State.QUEUED, State.RUNNING):
        assert MOVES[state] >= ends
