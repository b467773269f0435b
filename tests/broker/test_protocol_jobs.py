"""Jobs: results that are kept, idempotency keys, and gateways that ask for a request by its id."""

import pytest
from support.audit import leftovers, snapshot
from support.scene import MINUTE_US, Scene, verdict

from shared.broker import housekeeping, requests
from shared.broker.requests import Job
from shared.errors import ErrorKind
from shared.keys import Queue

TTL_MS = 3_600_000
JOB = Job(ttl_ms=TTL_MS, ask=b"how\x00to\xffrender")


def keyed(key: str = "k", digest: str = "d") -> Job:
    """A synchronous request with an idempotency key."""
    return Job(ttl_ms=TTL_MS, key=key, digest=digest, sync=True)


# -- idempotency -------------------------------------------------------------------------------------------------------


async def test_a_key_names_one_request(scene: Scene) -> None:
    """The same again is the first one, in any state; the same key for something else is a mismatch."""
    assert (await scene.accept("first", job=keyed()))[0][0] == "OK"
    assert await scene.accept("second", job=keyed()) == [("SAME", "first")]
    assert await scene.accept("other", job=keyed(digest="e")) == [("MISMATCH", "first")]
    assert await scene.accept("first", job=keyed()) == [("DUP", "QUEUED")]
    await scene.complete(*await scene.fetch())
    assert await scene.accept("third", job=keyed()) == [("SAME", "first")]
    assert await scene.states("second", "third", "other") == ["GONE"] * 3
    assert await scene.rung() == ["first"]


async def test_a_key_used_twice_in_one_call_names_one_request(scene: Scene) -> None:
    """Also requests that a gateway hands over together."""
    (first, _), second = await scene.accept("a", "b", job=keyed())
    assert (first, second) == ("OK", ("SAME", "a"))
    assert await scene.depth() == 1


async def test_keys_belong_to_their_tenant_and_model(scene: Scene) -> None:
    """Two clients may have the same idea."""
    other = Scene(scene.c, Queue("bert", "1"))
    await other.open()
    await scene.accept("a", job=keyed(), tenant="T")
    assert (await scene.accept("b", job=keyed("k2"), tenant="T"))[0][0] == "OK"
    assert (await scene.accept("c", job=keyed(), tenant="U"))[0][0] == "OK"
    assert (await other.accept("d", job=keyed(), tenant="T"))[0][0] == "OK"


async def test_the_key_of_an_expired_record_is_free(scene: Scene) -> None:
    """There is nothing to attach to any more: the request runs, and the key is its own."""
    await scene.accept("first", job=keyed())
    await scene.complete(*await scene.fetch())
    await requests.forget(scene.c, scene.queue, scene.gateway, ["first"])
    assert (await scene.accept("second", job=keyed(digest="e")))[0][0] == "OK"
    assert await scene.accept("third", job=keyed(digest="e")) == [("SAME", "second")]


async def test_a_key_outlives_the_result_that_it_names(scene: Scene) -> None:
    """While a result is kept its key finds it; both go by themselves."""
    await scene.accept("a", job=keyed())
    await scene.complete(*await scene.fetch())
    key, record = f"{scene.queue.tag}:i:-:k", scene.queue.record("a")
    assert await scene.c.call("PTTL", key) >= await scene.c.call("PTTL", record) > TTL_MS - 60_000


async def test_a_refused_request_takes_no_key(scene: Scene) -> None:
    """A full queue now must not answer for the try that comes later."""
    assert await scene.accept("a", job=keyed(), limits=requests.Limits(0)) == [("FULL", "0")]
    assert (await scene.accept("b", job=keyed()))[0][0] == "OK"


# -- results that are kept ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["DONE", "FAILED", "CANCELLED", "EXPIRED", "EXPIRED by the tick", "DEAD", "given up"])
async def test_the_end_of_a_job_is_kept_equally_long_and_told(scene: Scene, end: str) -> None:
    """Whatever it is (arq #531): found by its id with an answer, and in the stream of the webhooks, once."""
    await scene.accept("a", job=Job(ttl_ms=TTL_MS, hook="http://there"))
    (a,) = await scene.fetch()
    for _ in range(2):
        match end:
            case "DONE" | "FAILED":
                await scene.complete(a, failed=end == "FAILED")
            case "CANCELLED" | "EXPIRED":
                await scene.cancel("a", expired=end == "EXPIRED")
            case "EXPIRED by the tick":
                await scene.pass_deadline("a")
                await scene.tick()
            case "DEAD":
                await scene.c.call("HSET", scene.queue.record("a"), "cr", housekeeping.CRASHES_MAX - 1)
                await scene.crash("w-1", a)
            case "given up":
                await scene.retry(a, errors_max=1)
    found = await requests.attach(scene.c, scene.queue, "a")
    assert found.state == {"EXPIRED by the tick": "EXPIRED", "given up": "FAILED"}.get(end, end)
    assert found.answer
    for key in (scene.queue.record("a"), scene.queue.payload("a")):
        assert TTL_MS - 10_000 < await scene.c.call("PTTL", key) <= TTL_MS
    hooks = await scene.c.call("XRANGE", scene.queue.hooks, "-", "+")
    assert [fields for _, fields in hooks] == [[b"r", b"a"]]
    assert await scene.rung() == [], "nobody waits for it"
    assert await leftovers(scene.c, scene.queue) == []


async def test_a_job_runs_though_its_gateway_is_gone(scene: Scene) -> None:
    """Somebody may ask for it later; only a request that a connection waits for ends with its gateway."""
    await scene.accept("job", job=JOB)
    await scene.accept("keyed", job=keyed())
    await scene.accept("plain")
    await scene.c.call("DEL", scene.queue.replies(scene.gateway))
    assert [d.id for d in await scene.fetch()] == ["job", "keyed"]
    assert await scene.state("plain") == "GONE"


# -- attach ------------------------------------------------------------------------------------------------------------


async def test_whoever_attaches_is_rung_at_the_end(scene: Scene) -> None:
    """Each gateway once, besides the one that handed it over; attaching twice is attaching once."""
    for gateway in ("gw-2", "gw-3"):
        await requests.listen(scene.c, scene.queue, gateway)
    await scene.accept("a", job=keyed())
    for gateway in ("gw-2", "gw-3", "gw-2", "gw-1"):
        assert (await requests.attach(scene.c, scene.queue, "a", gateway)).state == "QUEUED"
    await scene.complete(*await scene.fetch())
    for gateway in ("gw-1", "gw-2", "gw-3"):
        assert await scene.replies(gateway) == [[("a", b"=answer")]]
    assert await leftovers(scene.c, scene.queue) == []


@pytest.mark.parametrize("expired", [False, True])
async def test_whoever_attached_hears_that_a_job_was_cancelled(scene: Scene, expired: bool) -> None:
    """Somebody else ended it: those who wait get that as the answer, and not only at their own deadline."""
    await requests.listen(scene.c, scene.queue, "gw-2")
    await scene.accept("a", job=JOB)
    await requests.attach(scene.c, scene.queue, "a", "gw-2")
    await scene.cancel("a", expired=expired)
    ((rid, answer),) = (await scene.replies("gw-2"))[0]
    assert (rid, verdict(answer)) == ("a", ErrorKind.DEADLINE if expired else ErrorKind.CANCELLED)
    assert (await requests.attach(scene.c, scene.queue, "a", "gw-2")).answer == answer


async def test_what_has_ended_is_found_with_its_answer(scene: Scene) -> None:
    """And how it is to be rendered, byte for byte, whose it is and since when."""
    await scene.accept("a", job=JOB, tenant="T")
    before = await requests.attach(scene.c, scene.queue, "a")
    await scene.complete(*await scene.fetch(), answer=b"=long" * 10_000)
    after = await requests.attach(scene.c, scene.queue, "a", "gw-9")
    assert (before.state, before.answer) == ("QUEUED", b"")
    assert (after.state, after.answer) == ("DONE", b"=long" * 10_000)
    assert (after.ask, after.tenant, after.accepted_us) == (JOB.ask, "T", before.accepted_us)
    assert after.accepted_us > 1_600_000_000_000_000


async def test_looking_changes_nothing(scene: Scene) -> None:
    """Neither what is there nor what is not."""
    await scene.accept("a", job=JOB)
    before = await snapshot(scene.c)
    assert (await requests.attach(scene.c, scene.queue, "a")).state == "QUEUED"
    assert (await requests.attach(scene.c, scene.queue, "nobody", "gw-1")).state == "GONE"
    assert await snapshot(scene.c) == before


async def test_the_gateways_of_a_request_are_bounded(scene: Scene) -> None:
    """The first to come is the first to go; its client finds the answer in the record."""
    await scene.accept("a", job=JOB)
    for i in range(6):
        await requests.listen(scene.c, scene.queue, f"gw-{i}")
        await requests.attach(scene.c, scene.queue, "a", f"gw-{i}")
    await scene.complete(*await scene.fetch())
    assert [len(await scene.rung(f"gw-{i}")) for i in range(6)] == [0, 0, 1, 1, 1, 1]


async def test_an_attached_gateway_keeps_a_request_alive(scene: Scene) -> None:
    """The one that handed it over is gone, another one waits: it runs."""
    await requests.listen(scene.c, scene.queue, "gw-2")
    await scene.accept("a", gateway="gone")
    await requests.attach(scene.c, scene.queue, "a", "gw-2")
    await scene.c.call("DEL", scene.queue.replies("gone"))
    await scene.complete(*await scene.fetch())
    assert await scene.rung("gw-2") == ["a"]
    assert await scene.c.call("EXISTS", scene.queue.replies("gone")) == 0


async def test_a_job_keeps_its_time_from_its_end_on(scene: Scene) -> None:
    """How long it waited and ran does not shorten how long its result is kept."""
    await scene.accept("a", job=Job(ttl_ms=5_000), budget_us=10 * MINUTE_US)
    assert await scene.c.call("PTTL", scene.queue.record("a")) > 600_000
    await scene.complete(*await scene.fetch())
    assert 4_000 < await scene.c.call("PTTL", scene.queue.record("a")) <= 5_000
