"""Requests that a model cannot stand: each pays for itself alone, whatever it does to the process."""

import asyncio
import json
from collections.abc import Iterator

import e2e_stack
import pytest
import redis.asyncio
from e2e_stack import Stack

from shared.events import Evt, Wreq
from shared.keys import Queue

KILLS, RAISES, LATER, NEVER, HANGS, INFINITE = 1001, 1002, 1003, 1004, 1005, 1006
TEMPER = Queue("temper", "1")


@pytest.fixture(scope="module")
def temper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two workers with the model `temper`; they are taken for dead, or hung, after a second."""
    models = {"temper": e2e_stack.OWN_MODELS / "temper"}
    repository = e2e_stack.make_repository(tmp_path_factory.mktemp("temper"), models)
    env = {"TAILRACE_LEASE_S": "1", "TAILRACE_PASS_MAX_S": "1"}
    running = e2e_stack.start_up(repository, "--workers", "2", env=env)
    yield running
    e2e_stack.stop_all(running)


@pytest.fixture
def letters(temper: Stack) -> Iterator[redis.Redis]:
    """The Redis of that system, its dead letters cleared before."""
    with redis.from_url(temper.redis_url) as client:
        client.delete(TEMPER.dead_letters)
        yield client


async def ask(url: str, *numbers: int) -> dict[int, tuple[int, object]]:
    """All numbers at once, each in a request of its own; its status, and its answer or error."""

    async def one(n: int) -> tuple[int, object]:
        body = e2e_stack.infer_json("n", "INT64", [1, 1], [n])
        async with session.post(f"{url}/v2/models/temper/infer", data=body) as response:
            told = json.loads(await response.text())
            return response.status, told["outputs"][0]["data"][0] if response.status == 200 else told["error"]

    async with e2e_stack.clients() as session:
        return dict(zip(numbers, await asyncio.gather(*map(one, numbers)), strict=True))


def kept(letters: redis.Redis) -> list[tuple[str, int]]:
    """Why requests were given up, and how many attempts each took."""
    return [(f[b"why"].decode(), int(f[b"a"])) for _, f in letters.xrange(TEMPER.dead_letters)]


async def test_an_exception_costs_the_request_that_raised_it(temper: Stack, letters: redis.Redis) -> None:
    """The batch is halved until the culprit fails alone, with its own error; its neighbours are answered."""
    told = await ask(temper.url, 1, 2, 3, RAISES, 4, 5, 6, 7)
    status, text = told.pop(RAISES)
    assert (status, text) == (500, "ValueError: 1002 is not to my taste")
    assert told == {n: (200, 3 * n + 1) for n in told}
    assert kept(letters) == []


async def test_an_output_that_is_not_finite_is_refused_where_the_model_says_so(temper: Stack) -> None:
    """`finite = true` in model.toml: the request fails by itself and says why."""
    told = await ask(temper.url, 1, INFINITE, 2)
    status, text = told.pop(INFINITE)
    assert status == 500
    assert "holds NaN or infinity" in str(text)
    assert told == {n: (200, 3 * n + 1) for n in told}


async def test_what_may_pass_is_tried_again(temper: Stack, letters: redis.Redis) -> None:
    """ModelRetry: the request comes back after a while, and its client notices nothing but the time."""
    told = await ask(temper.url, 1, LATER)
    assert told == {1: (200, 4), LATER: (200, 3 * LATER + 1)}
    outcomes = [w.outcome for w in temper.logged(Wreq, lambda w: w.outcome == "RETRY", count=2)]
    assert set(outcomes) == {"RETRY"}
    assert kept(letters) == []


async def test_what_never_passes_is_given_up_with_its_own_error(temper: Stack, letters: redis.Redis) -> None:
    """After the third attempt the client has the model's own words, and the request is kept as a dead letter."""
    told = await ask(temper.url, NEVER)
    status, text = told[NEVER]
    assert status == 500
    assert "was too early" in str(text)
    assert kept(letters) == [("errors", 3)]


async def test_a_request_that_kills_its_worker_takes_nobody_along(temper: Stack, letters: redis.Redis) -> None:
    """complaint 56: the others of its batch run again, each alone; the poison is a dead letter after three crashes."""
    told = await ask(temper.url, 1, 2, 3, KILLS, 4, 5, 6, 7)
    status, text = told.pop(KILLS)
    assert status == 500
    assert "dead letter" in str(text)
    assert told == {n: (200, 3 * n + 1) for n in told}
    ((why, attempts),) = kept(letters)
    assert (why, attempts) == ("crashed", 3)
    suspects = temper.logged(Evt, lambda e: e.kind == "reclaim" and "suspects" in e.attrs)
    assert suspects


async def test_a_pass_that_never_returns_is_ended_with_its_process(temper: Stack, letters: redis.Redis) -> None:
    """queue-protocol 2.2 row 33: a heartbeat proves progress. The process goes, the others are answered."""
    told = await ask(temper.url, 1, 2, HANGS, 3)
    status, text = told.pop(HANGS)
    assert status == 500
    assert "dead letter" in str(text)
    assert told == {n: (200, 3 * n + 1) for n in told}
    assert [why for why, _ in kept(letters)] == ["crashed"]
    assert temper.logged(Evt, lambda e: e.kind == "pass_hung")


def test_the_workers_are_back(temper: Stack) -> None:
    """After all that both workers serve again."""
    e2e_stack.eventually(lambda: len(temper.main.children_like("worker")) == 2, within_s=30, what="two workers")
    answer = e2e_stack.ask(temper.url, "/v2/models/temper/infer", body=e2e_stack.infer_json("n", "INT64", [1, 1], [5]))
    assert answer.json["outputs"][0]["data"] == [16.0]
