"""From computed to told: what `complete` and the reply streams promise while nothing goes wrong."""

from support.audit import leftovers
from support.scene import Scene

from shared.broker import requests, scripts, work
from shared.broker.work import Answer
from shared.keys import Queue

# -- complete ----------------------------------------------------------------------------------------------------------


async def test_an_answer_counts_once(scene: Scene) -> None:
    """The first verdict stands: repeating it is harmless, another one comes too late, an unknown one is told so."""
    await scene.accept("a")
    (a,) = await scene.fetch()
    assert await scene.complete(a, answer=b"=first") == ["OK"]
    assert await scene.complete(a, answer=b"=first") == ["OKDUP"]
    assert await scene.complete(a, failed=True, answer=b"=other") == ["STALE"]
    of_another_attempt = Answer("a", a.attempt + 1, False, b"=other")
    unknown = Answer("nobody", 1, False, b"=other")
    assert await work.complete(scene.c, scene.queue, [of_another_attempt, unknown]) == ["STALE", "GONE"]
    assert await requests.peek(scene.c, scene.queue, ["a", "nobody"]) == [("DONE", b"=first"), ("GONE", b"")]
    assert await scene.replies() == [[("a", b"=first")]]
    assert await leftovers(scene.c, scene.queue) == []


async def test_a_failure_is_an_answer_too(scene: Scene) -> None:
    """FAILED ends a request as DONE does."""
    await scene.accept("a")
    assert await scene.complete(*await scene.fetch(), failed=True, answer=b"=error") == ["OK"]
    assert await requests.peek(scene.c, scene.queue, ["a"]) == [("FAILED", b"=error")]
    assert await scene.replies() == [[("a", b"=error")]]
    assert await leftovers(scene.c, scene.queue) == []


async def test_done_and_failed_are_kept_equally_long(scene: Scene) -> None:
    """How long a result stays does not depend on what it is, and is longer than its gateway may look for it (row 19:
    arq #531)."""
    await scene.accept("good", "bad")
    good, bad = await scene.fetch()
    await scene.complete(good)
    await scene.complete(bad, failed=True)
    for key in (scene.queue.record, scene.queue.payload):
        left = [await scene.c.call("PTTL", key(rid)) for rid in ("good", "bad")]
        assert abs(left[0] - left[1]) < 10_000
        assert min(left) > requests.RECORD_TTL_MS


async def test_a_batch_rings_its_gateway_once(scene: Scene) -> None:
    """All answers of a pass travel in one entry of the reply stream, one for each gateway."""
    await requests.listen(scene.c, scene.queue, "gw-2")
    await scene.accept("a", "b")
    await scene.accept("c", gateway="gw-2")
    await scene.complete(*await scene.fetch())
    assert await scene.replies() == [[("a", b"=answer"), ("b", b"=answer")]]
    assert await scene.replies("gw-2") == [[("c", b"=answer")]]


async def test_a_long_answer_stays_in_the_record(scene: Scene) -> None:
    """The reply stream carries short answers; of a long one it says that it is there."""
    long = b"=" + b"x" * work.INLINE_BYTES_MAX
    await scene.accept("long", "short")
    first, second = await scene.fetch()
    answers = [Answer(first.id, 1, False, long), Answer(second.id, 1, False, long[:-1])]
    await work.complete(scene.c, scene.queue, answers)
    assert await scene.replies() == [[("long", b""), ("short", long[:-1])]]
    assert await requests.peek(scene.c, scene.queue, ["long"]) == [("DONE", long)]


async def test_the_length_of_the_queue_is_exact(scene: Scene) -> None:
    """What is answered is deleted, so the streams hold what is queued and running, and nothing else."""
    depths = []
    for rid in "abc":
        await scene.accept(rid)
    depths.append(await scene.depth())
    delivered = await scene.fetch(want=2)
    depths.append(await scene.depth())
    await scene.complete(delivered[0])
    depths.append(await scene.depth())
    await requests.cancel(scene.c, scene.queue, ["c"])
    depths.append(await scene.depth())
    await scene.complete(delivered[1])
    depths.append(await scene.depth())
    assert depths == [3, 3, 2, 1, 0]
    assert await leftovers(scene.c, scene.queue) == []


async def test_an_answer_to_a_gateway_that_is_gone_leaves_no_stream(scene: Scene) -> None:
    """A reply stream exists while its gateway listens; completions only add to one that exists."""
    await scene.accept("a", gateway="gone")
    delivered = await scene.fetch()
    await scene.c.call("DEL", scene.queue.replies("gone"))
    await scene.complete(*delivered)
    assert await scene.c.call("EXISTS", scene.queue.replies("gone")) == 0
    assert await scene.state("a") == "DONE"


async def test_a_batch_of_thousands_is_answered_whole(scene: Scene) -> None:
    """Lists longer than Lua can unpack are handed on in slices."""
    ids = [f"r-{i}" for i in range(3000)]
    for i in range(0, 3000, 500):
        await scene.accept(*ids[i : i + 500])
    delivered = await scene.fetch(want=3000)
    assert set(await scene.complete(*delivered)) == {"OK"}
    assert await scene.rung() == ids
    assert await leftovers(scene.c, scene.queue) == []


# -- replies -----------------------------------------------------------------------------------------------------------


async def test_a_gateway_reads_on_where_it_stopped(scene: Scene) -> None:
    """Answers are read in order from the last entry known, over all queues; none twice, none skipped."""
    other = Scene(scene.c, Queue("bert", "1"))
    await other.open()
    seen: dict[Queue, str] = {scene.queue: "0", other.queue: "0"}

    async def read() -> list[tuple[Queue, str]]:
        found = await requests.read_replies(scene.c, seen, scene.gateway, block_ms=1)
        seen.update((queue, entry_id) for queue, entry_id, _ in found)
        return [(queue, rid) for queue, _, answers in found for rid, _ in answers if rid != "hello"]

    await scene.accept("a")
    await scene.complete(*await scene.fetch())
    assert await read() == [(scene.queue, "a")]
    await scene.accept("b")
    await other.accept("c")
    await scene.complete(*await scene.fetch())
    await other.complete(*await other.fetch())
    assert sorted(rid for _, rid in await read()) == ["b", "c"]
    assert await read() == []


async def test_a_reply_stream_lives_as_long_as_its_gateway(scene: Scene) -> None:
    """It is created once, renewed by each listening, and goes by itself when the gateway does."""
    assert await requests.listen(scene.c, scene.queue, "gw-2")
    assert not await requests.listen(scene.c, scene.queue, "gw-2")
    assert 0 < await scene.c.call("PTTL", scene.queue.replies("gw-2")) <= requests.REPLY_STREAM_TTL_MS


async def test_what_is_known_to_have_ended_is_forgotten(scene: Scene) -> None:
    """A gateway that has the answer deletes record, answer and reply: nothing grows with the number of requests."""
    await scene.accept("a", "b")
    await scene.complete(*await scene.fetch())
    found = await requests.read_replies(scene.c, {scene.queue: "0"}, scene.gateway, block_ms=1)
    await requests.forget(scene.c, scene.queue, scene.gateway, ["a", "b"], read_up_to=found[-1][1])
    assert await scene.states("a", "b") == ["GONE", "GONE"]
    assert await scene.c.call("XLEN", scene.queue.replies(scene.gateway)) <= 1
    assert not [k for k in await scene.c.call("KEYS", "*") if k.endswith((b":a", b":b"))]
    assert (await scene.accept("a"))[0][0] == "OK"


async def test_peek_tells_the_state_of_each_and_the_answer_of_the_ended(scene: Scene) -> None:
    """The truth is read without being changed."""
    await scene.accept("queued", "done", "failed", "cancelled")
    for_id = {d.id: d for d in await scene.fetch()}
    await scene.complete(for_id["done"], answer=b"=1")
    await scene.complete(for_id["failed"], failed=True, answer=b"=2")
    await requests.cancel(scene.c, scene.queue, ["cancelled"])
    await scene.accept("new")
    assert await requests.peek(scene.c, scene.queue, ["queued", "done", "failed", "cancelled", "new", "nobody"]) == [
        ("RUNNING", b""),
        ("DONE", b"=1"),
        ("FAILED", b"=2"),
        ("CANCELLED", b""),
        ("QUEUED", b""),
        ("GONE", b""),
    ]


async def test_counters_add_up(scene: Scene) -> None:
    """The cumulative statistics of a queue are sums over all workers."""
    await work.count(scene.c, scene.queue, {"requests": 2, "rows": 5}, at_ms=1)
    await work.count(scene.c, scene.queue, {"requests": 1}, at_ms=2)
    assert await requests.counters(scene.c, scene.queue) == {"requests": 3, "rows": 5, "last_inference_ms": 2}


async def test_a_foreign_version_of_a_script_does_not_disturb_ours(scene: Scene) -> None:
    """Scripts are named by their content, so two versions of tailrace share a Redis during an upgrade."""
    await scene.c.call("SCRIPT", "LOAD", scripts.source("accept") + b"\n-- the next version")
    assert (await scene.accept("a"))[0][0] == "OK"


async def test_an_empty_call_changes_nothing(scene: Scene) -> None:
    """A script without requests is a script without effect."""
    before = await scene.c.call("DBSIZE")
    assert await scene.accept() == []
    assert await work.complete(scene.c, scene.queue, []) == []
    assert await requests.cancel(scene.c, scene.queue, []) == []
    assert await requests.peek(scene.c, scene.queue, []) == []
    await requests.forget(scene.c, scene.queue, scene.gateway, [])
    assert await scene.c.call("DBSIZE") == before
