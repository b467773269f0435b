"""Parcels: requests that travel together are counted, answered, refused and withdrawn each for itself."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.audit import counted, leftovers
from support.scene import AMPLE, TRACE, Scene
from support.waiting import eventually

from gateway import parcels
from gateway.parcels import Pace, company_of, grouped
from gateway.pending import Pending
from gateway.replies import Replies
from gateway.submit import Submitter
from shared import clock, wire
from shared.broker import requests, work
from shared.broker.connection import Connection
from shared.broker.work import Answer
from shared.errors import ErrorKind, TailraceError
from worker.intake import receive
from worker.models.interface import Model, ModelConfig

STAMPS = wire.WorkerStamps(0, 0, 0, 0, 1_000, 0, 0, 33_000, 0, "w-1", "clock", 1, 0, "b", 1, 16, "full", 0, 0)
CHEAP, DEAR = STAMPS, wire.WorkerStamps(*([0] * 7), 1 << 40, 0, "w-1", "clock", 1, 0, "b", 1, 16, "full", 0, 0)
MINUTE_NS = 60_000_000_000


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model is cheap, and nothing is too slow for a busy machine."""
    monkeypatch.setattr(Pace, "pays", lambda pace, now_ns: now_ns >= pace._not_before_ns)


@pytest_asyncio.fixture
async def submitter(scene: Scene, connection: Connection) -> AsyncIterator[Submitter]:
    """A gateway's, its hand-overs undisturbed."""
    submitter = Submitter(connection, scene.gateway, inflight_max=100, inflight_bytes_max=1 << 20, limits=AMPLE)
    yield submitter
    for p in submitter.pending.values():
        p.answer.add_done_callback(lambda answer: answer.exception())  # nobody asks any more
    await submitter.drain(0)


def submit(submitter: Submitter, scene: Scene, rid: str, **more: Any) -> Pending:
    """One that may travel with others."""
    settings = {"company": 8, "deadline_at_ns": clock.now_ns() + MINUTE_NS} | more
    body = wire.RequestBody([wire.Tensor("x", "BYTES", [1], memoryview(rid.encode()))])
    payload = wire.encode_request(body)
    return submitter.submit(
        id=rid, queue=scene.queue, payload=payload, traceparent=TRACE, tracestate=f"of={rid}", **settings
    )


async def sent(submitter: Submitter) -> None:
    """What was submitted has been handed over."""
    await eventually(lambda: submitter.is_quiet, "all is said")


def bodies(*texts: str) -> list[bytes]:
    """An answer each; "again" sends the request back."""
    return [
        wire.encode_reply_body(wire.ReplyBody(error_code=wire.AGAIN) if t == "again" else wire.ReplyBody([], {"t": t}))
        for t in texts
    ]


async def read(scene: Scene, submitter: Submitter) -> None:
    """What the reply stream holds goes to whom it is for."""
    replies = Replies(scene.c, scene.c, submitter)
    for queue, _, answers in await requests.read_replies(scene.c, {scene.queue: "0"}, scene.gateway, block_ms=10):
        replies._deliver(queue, answers, [], clock.now_ns())


async def test_a_tick_s_requests_share_an_entry(scene: Scene, submitter: Submitter) -> None:
    """Counted as what they are, each trace in the entry's headers; each gets its own answer and one set of stamps."""
    pending = [submit(submitter, scene, rid) for rid in "abc"]
    await sent(submitter)
    assert (await counted(scene.c, scene.queue))["l2"] == 3
    assert (await requests.depths(scene.c, [scene.queue])) == {str(scene.queue): 3}
    ((_, fields),) = await scene.c.call("XRANGE", scene.queue.lanes[2], "-", "+")
    assert dict(zip(fields[::2], fields[1::2], strict=True))[b"tp"].decode().split(",") == [TRACE] * 3

    (parcel,) = await scene.fetch()
    members = wire.decode_parcel(parcel.payload)
    assert [(m.id, m.traceparent, m.tracestate) for m in members] == [(rid, TRACE, f"of={rid}") for rid in "abc"]
    answer = wire.encode_parcel_reply(STAMPS, bodies("A", "B", "C"))
    assert await work.complete(scene.c, scene.queue, [Answer(parcel.id, parcel.attempt, False, answer)]) == ["OK"]
    await read(scene, submitter)
    answers = [p.answer.result() for p in pending]
    assert [a.body.parameters["t"] for a in answers] == ["A", "B", "C"]
    assert {a.stamps for a in answers} == {STAMPS}
    assert all(p.g3 and p.g4 and p.g5 and p.entry_id == parcel.entry_id and p.submits == 1 for p in pending)
    assert await leftovers(scene.c, scene.queue) == []


async def test_one_that_failed_in_a_way_that_may_pass_goes_again_alone(scene: Scene, submitter: Submitter) -> None:
    """The others have their answers."""
    pending = [submit(submitter, scene, rid) for rid in "abc"]
    await sent(submitter)
    (parcel,) = await scene.fetch()
    answer = wire.encode_parcel_reply(STAMPS, bodies("A", "again", "C"))
    await work.complete(scene.c, scene.queue, [Answer(parcel.id, 1, False, answer)])
    await read(scene, submitter)
    assert [p.answer.done() for p in pending] == [True, False, True]
    await sent(submitter)
    assert [(d.id, d.content_type) for d in await scene.fetch()] == [("b", wire.CONTENT_TYPE)]


async def test_what_is_refused_together_is_asked_for_singly(scene: Scene, connection: Connection) -> None:
    """There is room for two of three."""
    limits = requests.Limits(requests_max=2)
    submitter = Submitter(connection, scene.gateway, inflight_max=100, inflight_bytes_max=1 << 20, limits=limits)
    pending = [submit(submitter, scene, rid) for rid in "abc"]
    await sent(submitter)
    assert [d.id for d in await scene.fetch()] == ["a", "b"]
    with pytest.raises(TailraceError, match="2 requests are queued or running"):
        pending[2].answer.result()
    await submitter.drain(0)


async def test_an_end_without_an_answer_sets_its_requests_free(scene: Scene, submitter: Submitter) -> None:
    """Its worker died three times over: no dead letter, and nobody hears of it; for a while there are no parcels."""
    pending = [submit(submitter, scene, rid) for rid in "ab"]
    await sent(submitter)
    (parcel,) = await scene.fetch()
    error = wire.encode_reply(STAMPS, wire.encode_reply_body(wire.ReplyBody(error_code=ErrorKind.CRASHED.code)))
    await work.complete(scene.c, scene.queue, [Answer(parcel.id, 1, True, error)])
    await read(scene, submitter)
    assert not any(p.answer.done() for p in pending)
    submit(submitter, scene, "c")
    await sent(submitter)
    assert sorted(d.id for d in await scene.fetch()) == ["a", "b", "c"]


async def test_it_is_withdrawn_when_nobody_waits_any_more(scene: Scene, submitter: Submitter) -> None:
    """And not before."""
    first, second = (submit(submitter, scene, rid) for rid in "ab")
    await sent(submitter)
    submitter.abandon(first)
    await sent(submitter)
    assert (await counted(scene.c, scene.queue))["l2"] == 2
    submitter.abandon(second)
    await sent(submitter)
    assert await scene.fetch() == []
    assert await leftovers(scene.c, scene.queue) == []
    assert first.entry_id == second.entry_id != ""


async def test_a_lost_one_is_handed_over_again(scene: Scene, submitter: Submitter) -> None:
    """Redis has forgotten everything."""
    pending = [submit(submitter, scene, rid) for rid in "ab"]
    await sent(submitter)
    await scene.c.call("FLUSHALL")
    await scene.open()
    (parcel,) = submitter._parcels.values()
    await submitter.look_up(scene.queue, [parcel])
    await sent(submitter)
    assert sorted(d.id for d in await scene.fetch()) == ["a", "b"]
    assert {p.submits for p in pending} == {2}


async def test_its_members_are_not_looked_up_themselves(scene: Scene, submitter: Submitter) -> None:
    """They have no record of their own, and would look lost."""
    pending = [submit(submitter, scene, rid) for rid in "ab"]
    await sent(submitter)
    (parcel,) = submitter._parcels.values()
    assert parcel.g4
    assert [p.g4 for p in pending] == [0, 0]


def test_only_what_is_alike_and_has_time_shares() -> None:
    """Tenant, priority, room in a pass, size, time left."""
    now = 1_000 * MINUTE_NS

    def one(rid: str, **more: Any) -> Pending:
        given = {"priority": 2, "company": 4, "payload": b"", "left_ns": MINUTE_NS} | more
        return Pending(
            rid, None, given["payload"], "", "", now + given["left_ns"], ErrorKind.DEADLINE, None,  # type: ignore[arg-type]
            priority=given["priority"], company=given["company"],
        )  # fmt: skip

    ps = [
        one("a"), one("b", priority=1), one("c"), one("d", company=1), one("e", left_ns=10),
        one("f", payload=b"x" * 5000), one("g"), one("h"), one("i"), one("j", priority=1),
    ]  # fmt: skip
    ids = [[p.id for p in group] for group in grouped(ps, now)]
    assert ids == [["a", "c", "g", "h"], ["b", "j"], ["d"], ["e"], ["f"], ["i"]]


def test_only_requests_that_cost_the_same_share() -> None:
    """Texts and variable shapes differ in length: the worker chooses who goes with whom."""

    def company(*inputs: tuple[str, list[int]]) -> int:
        specs = [wire.ModelTensor("x", datatype, shape) for datatype, shape in inputs]
        return company_of(wire.ModelDescriptor("m", "1", "pytorch_python", 8, specs, []))

    assert company(("FP32", [64])) == 8
    assert company(("INT64", [])) == 8
    assert company(("FP32", [64]), ("FP32", [-1])) == 1
    assert company(("BYTES", [1])) == 1


class TestPace:
    """When parcels pay."""

    @pytest.fixture(autouse=True)
    def always(self) -> None:
        """As it is."""

    def test_a_cheap_model_s_do_and_a_dear_one_s_do_not(self) -> None:
        """Nothing is known before the first answer."""
        pace = Pace()
        pace.begin(0)
        assert not pace.pays(0)
        pace.learn(CHEAP, 1)
        assert pace.pays(1)
        pace.learn(DEAR, 2)
        assert not pace.pays(2)

    def test_not_while_answers_keep_people_waiting(self) -> None:
        """What waits long in a parcel cannot be withdrawn singly."""
        pace = Pace()
        pace.begin(0)
        pace.learn(CHEAP, 1)
        pace.begin(2)
        assert pace.pays(1 + parcels.STALLED_NS), "two are pending, and may take their time"
        assert not pace.pays(1 + parcels.STALLED_NS + 2 * parcels.CHEAP_NS)
        pace.pending = 0
        pace.begin(10 * parcels.STALLED_NS)
        assert pace.pays(10 * parcels.STALLED_NS), "nobody had to wait meanwhile"

    def test_not_for_a_while_after_one_went_wrong(self) -> None:
        """It would go wrong again."""
        pace = Pace()
        pace.learn(CHEAP, 1)
        pace.pause(1)
        pace.learn(CHEAP, parcels.PAUSE_NS)
        assert not pace.pays(parcels.PAUSE_NS)
        assert pace.pays(parcels.PAUSE_NS + 1)


class Picky(Model):
    """Shares a pass only with what has as many bytes."""

    def batch_key(self, request: Any) -> int:
        return len(request.inputs["x"][0])


@pytest.mark.parametrize(("texts", "attempt", "runs"), [("aa", 1, True), (("a", "bb"), 1, False), ("aa", 2, False)])
def test_a_worker_runs_a_parcel_whole_and_once(texts: Any, attempt: int, runs: bool) -> None:
    """What cannot share a pass, and what was begun before, goes back: nobody pays for a neighbour's crash."""
    members = []
    for i, text in enumerate(texts):
        data = len(text).to_bytes(4, "little") + text.encode()
        body = wire.RequestBody([wire.Tensor("x", "BYTES", [1], memoryview(data))])
        members.append((f"r-{i}", TRACE, "", wire.encode_request(body)))
    delivery = work.Delivery(
        "p", "lane", "1-1", attempt, MINUTE_NS, 0, 0, "gw", 1, wire.PARCEL_TYPE, "", "", 0, wire.encode_parcel(members)
    )
    config = ModelConfig("m", "1", "pytorch_python", (), (), Path(), max_batch_size=8)
    job = receive(delivery, Picky(), config, w0=1, w1=2)
    assert job.is_parcel
    assert (job.error is None) == runs
    assert [m.id for m in job.members] == ["r-0", "r-1"]
    assert job.waiting.rows == 2
