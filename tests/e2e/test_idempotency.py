"""Idempotency keys through HTTP: however often a request is sent, it is computed once."""

import asyncio
from collections.abc import Iterator, Mapping
from uuid import uuid4

import aiohttp
import e2e_stack
import pytest
from e2e_stack import Stack, ask, infer_json

from shared.events import Batch
from shared.keys import Queue

NAP = Queue("nap", "1")
INFER = "/v2/models/nap/infer"


def nap(ms: int, **more: object) -> str:
    """A pass of so long, whose answer counts the requests that were computed."""
    return infer_json("ms", "INT64", [1, 1], [ms], **more)


def new_key() -> dict[str, str]:
    """A header with a key that nobody has used."""
    return {"Idempotency-Key": str(uuid4())}


@pytest.fixture(scope="module", autouse=True)
def quick(stack: Stack) -> None:
    """No request is refused for the pace of the naps."""
    e2e_stack.know_that_nap_is_quick(stack)


@pytest.fixture(scope="module")
def second(stack: Stack) -> Iterator[str]:
    """Another gateway."""
    process, url = stack.start_gateway("--idempotency-ttl-s", "100")
    yield url
    assert "Traceback" not in process.text
    process.stop()


async def ask_nap(
    session: aiohttp.ClientSession, url: str, ms: int, headers: Mapping[str, str]
) -> tuple[int, bytes, str]:
    """Status, body and the id of the request that was computed for it."""
    async with session.post(f"{url}{INFER}", data=nap(ms), headers=headers) as response:
        first = response.headers.get("x-tailrace-first-request-id", response.headers["x-tailrace-request-id"])
        return response.status, await response.read(), first


def test_a_repeated_request_gets_the_answer_of_the_first(stack: Stack, second: str) -> None:
    """At both gateways; the model counts one."""
    key = new_key()
    first = ask(stack.url, INFER, body=nap(0), headers=key)
    assert first.status == 200
    for url in (stack.url, second, stack.url):
        again = ask(url, INFER, body=nap(0), headers=key)
        assert (again.status, again.body) == (200, first.body)
        assert again.headers["x-tailrace-first-request-id"] == first.headers["x-tailrace-request-id"]
    other = ask(stack.url, INFER, body=nap(0), headers=new_key())
    assert other.json["outputs"][0]["data"] == [first.json["outputs"][0]["data"][0] + 1]


async def test_duplicates_at_the_same_time_run_the_model_once(stack: Stack, second: str) -> None:
    """30 copies at two gateways, sent while the first runs and before: one pass, one answer."""
    key = new_key()
    async with e2e_stack.clients() as session:
        urls = [stack.url, second] * 15
        got = await asyncio.gather(*(ask_nap(session, url, 400, key) for url in urls))

    assert {status for status, _, _ in got} == {200}
    assert len({body for _, body, _ in got}) == 1
    (computed,) = {first for _, _, first in got}
    stack.logged(Batch, lambda batch: computed in batch.members)
    assert sum(batch.members.count(computed) for batch in stack.records(Batch)) == 1


def test_a_key_that_was_used_for_another_body_is_refused(stack: Stack, second: str) -> None:
    """422 with the id of the first, at any gateway; a key of another tenant is another key."""
    key = new_key()
    first = ask(stack.url, INFER, body=nap(0), headers=key)
    for url in (stack.url, second):
        refused = ask(url, INFER, body=nap(0, id="x"), headers=key)
        assert refused.status == 422
        assert first.headers["x-tailrace-request-id"] in refused.error
    assert ask(stack.url, INFER, body=nap(0, id="x"), headers={**key, "x-tenant": "other"}).status == 200


async def test_a_client_that_left_finds_its_answer(stack: Stack) -> None:
    """A request with a key goes on without its client, who comes back with the same key."""
    key = new_key()
    async with e2e_stack.clients() as session:
        asking = asyncio.create_task(ask_nap(session, stack.url, 600, key))
        async with e2e_stack.broker_of(stack) as broker:

            async def taken() -> bool:
                return await e2e_stack.live(broker, "nap") == 1

            await e2e_stack.soon(taken, within_s=5, what="it is taken on")
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        status, _, computed = await ask_nap(session, stack.url, 600, key)

    assert status == 200
    stack.logged(Batch, lambda batch: computed in batch.members)
    assert sum(batch.members.count(computed) for batch in stack.records(Batch)) == 1


async def test_a_request_that_came_too_late_may_be_tried_again(stack: Stack) -> None:
    """504 is no answer: the same key runs it anew, and from then on keeps the answer."""
    key = new_key()
    async with e2e_stack.clients() as session:
        first = asyncio.create_task(ask_nap(session, stack.url, 1000, new_key()))
        async with e2e_stack.broker_of(stack) as broker:

            async def taken() -> bool:
                return await e2e_stack.live(broker, "nap") == 1

            await e2e_stack.soon(taken, within_s=5, what="the device is busy")
        late, *_ = await ask_nap(session, stack.url, 0, {**key, "x-request-timeout-ms": "200"})
        again, body, _ = await ask_nap(session, stack.url, 0, key)
        third, same, _ = await ask_nap(session, stack.url, 0, key)
        await first

    assert (late, again, third) == (504, 200, 200)
    assert body == same


async def test_who_waits_for_another_has_a_deadline_too(stack: Stack) -> None:
    """A copy with less time ends at its own deadline, and does not end the first."""
    key = new_key()
    async with e2e_stack.clients() as session:
        first = asyncio.create_task(ask_nap(session, stack.url, 1000, key))
        async with e2e_stack.broker_of(stack) as broker:

            async def taken() -> bool:
                return await e2e_stack.live(broker, "nap") == 1

            await e2e_stack.soon(taken, within_s=5, what="it is taken on")
        status, *_ = await ask_nap(session, stack.url, 1000, {**key, "x-request-timeout-ms": "200"})
        assert not first.done()
        assert (await first)[0] == 200
    assert status == 504


def test_jobs_have_keys_too(stack: Stack) -> None:
    """The same key leads to the same job; infer with that key gives its result, and the other way round."""
    key = new_key()
    jobs = [ask(stack.url, "/v2/models/nap/jobs", body=nap(0), headers=key) for _ in range(3)]
    assert {job.status for job in jobs} == {202}
    assert len({job.headers["location"] for job in jobs}) == 1
    result = ask(stack.url, f"{jobs[0].headers['location']}?wait=30")
    assert ask(stack.url, INFER, body=nap(0), headers=key).body == result.body
    done = ask(stack.url, "/v2/models/nap/jobs", body=nap(0), headers=key)
    assert (done.status, done.json["status"]) == (202, "done")
    assert ask(stack.url, "/v2/models/nap/jobs", body=nap(1), headers=key).status == 422

    other = new_key()
    answer = ask(stack.url, INFER, body=nap(0), headers=other)
    job = ask(stack.url, "/v2/models/nap/jobs", body=nap(0), headers=other)
    assert ask(stack.url, job.headers["location"]).body == answer.body


def test_a_deleted_job_frees_its_key(stack: Stack) -> None:
    """What was forgotten is run anew."""
    key = new_key()
    first = ask(stack.url, "/v2/models/nap/jobs", body=nap(0), headers=key).headers["location"]
    assert ask(stack.url, f"{first}?wait=30").status == 200
    assert ask(stack.url, first, method="DELETE").status == 204
    assert ask(stack.url, "/v2/models/nap/jobs", body=nap(0), headers=key).headers["location"] != first


async def test_an_answer_is_kept_for_the_time_of_the_setting(stack: Stack, second: str) -> None:
    """--idempotency-ttl-s of the gateway that took the request on: record, answer and key."""
    key = new_key()
    first = await asyncio.to_thread(ask, second, INFER, body=nap(0), headers=key)
    request_id = first.headers["x-tailrace-request-id"]
    async with e2e_stack.broker_of(stack) as broker:
        for name in (NAP.record(request_id), NAP.payload(request_id)):
            assert 90_000 < await broker.pttl(name) <= 100_000
        # The key is set before it is known when the answer comes.
        assert 0 < await broker.pttl(f"{NAP.tag}:i:-:{key['Idempotency-Key']}") <= (60 + 120 + 100) * 1000


@pytest.mark.parametrize("key", ["", "x" * 256, "gr\u00fcn"])
def test_a_wrong_key_is_refused(stack: Stack, key: str) -> None:
    """Before anything is submitted."""
    for path in (INFER, "/v2/models/nap/jobs"):
        refused = ask(stack.url, path, body=nap(0), headers={"Idempotency-Key": key})
        assert refused.status == 400
        assert "1 to 255 printable ASCII" in refused.error
