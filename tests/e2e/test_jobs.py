"""Asynchronous jobs through HTTP: submitted, followed, fetched as infer would have answered, cancelled, forgotten."""

import gzip
import json
import signal
from collections.abc import Iterator, Mapping

import e2e_stack
import pytest
from e2e_stack import Answer, Stack, ask, infer_json

from shared.events import Batch, Req
from shared.keys import Queue

PAIR = {
    "id": "mine",
    "inputs": [
        {"name": "name", "datatype": "BYTES", "shape": [1, 1], "data": ["Ada"]},
        {"name": "numbers", "datatype": "INT32", "shape": [1, 2], "data": [20, 22]},
    ],
}


def nap(ms: int) -> str:
    """A pass of so long."""
    return infer_json("ms", "INT64", [1, 1], [ms])


def submit(url: str, model: str, body: str, headers: Mapping[str, str] | None = None) -> str:
    """Submit a job; where it is."""
    taken = ask(url, f"/v2/models/{model}/jobs", body=body, headers=headers)
    assert taken.status == 202, taken
    assert taken.json["location"] == taken.headers["location"]
    return taken.headers["location"]


def wait(url: str, location: str, seconds: float = 30) -> Answer:
    """Its result, or that it has none within so long."""
    return ask(url, f"{location}?wait={seconds}")


@pytest.fixture(scope="module", autouse=True)
def quick(stack: Stack) -> None:
    """No request is refused for the pace of the naps."""
    e2e_stack.know_that_nap_is_quick(stack)


@pytest.fixture(scope="module")
def second(stack: Stack) -> Iterator[str]:
    """Another gateway, with short limits of its own."""
    process, url = stack.start_gateway("--job-wait-s", "0.2", "--job-timeout-s", "20", "--job-ttl-s", "100")
    yield url
    assert "Traceback" not in process.text
    process.stop()


def test_a_job_is_taken_on_followed_and_fetched(stack: Stack) -> None:
    """202 with its address; 202 with Retry-After while it runs; then the answer, as often as one asks."""
    taken = ask(stack.url, "/v2/models/nap/jobs", body=nap(700))
    assert taken.status == 202
    job_id = taken.headers["x-tailrace-request-id"]
    location = f"/v2/models/nap/versions/1/jobs/{job_id}"
    assert taken.json == {"id": job_id, "status": "queued", "location": location}
    assert taken.headers["location"] == location

    e2e_stack.eventually(lambda: ask(stack.url, location).json.get("status") == "running", within_s=5, what="it runs")
    running = ask(stack.url, location)
    assert running.status == 202
    assert running.headers["retry-after"] == "1"
    assert running.json == {"id": job_id, "status": "running", "location": location}

    for answer in (wait(stack.url, location), ask(stack.url, location)):
        assert answer.status == 200
        assert answer.json["outputs"][0]["name"] == "count"
    (record,) = stack.logged(Req, lambda r: r.id == job_id)
    assert (record.route, record.status, record.model, record.rows) == ("jobs", 202, "nap", 1)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"parameters": {"binary_data_output": True}},
        {"outputs": [{"name": "sum"}]},
        {"outputs": [{"name": "sum", "parameters": {"binary_data": True}}, {"name": "greeting"}]},
        {"outputs": [{"name": "sum", "parameters": {"classification": 1}}]},
    ],
)
def test_a_result_is_what_infer_would_have_answered(stack: Stack, second: str, more: dict[str, object]) -> None:
    """To the byte, binary outputs and their header included, and at any gateway."""
    body = json.dumps({**PAIR, **more})
    expected = ask(stack.url, "/v2/models/pair/infer", body=body)
    assert expected.status == 200

    location = submit(stack.url, "pair", body)
    result = e2e_stack.eventually(
        lambda: (got := ask(second, location)).status == 200 and got, within_s=10, what="the result"
    )

    assert result.body == expected.body
    for header in ("content-type", "inference-header-content-length"):
        assert result.headers.get(header) == expected.headers.get(header)


def test_infer_becomes_a_job_if_the_client_prefers_that(stack: Stack) -> None:
    """RFC 7240: Prefer: respond-async; the reply says that it was applied."""
    taken = ask(stack.url, "/v2/models/slow/infer", body=e2e_stack.slow_body(7), headers={"Prefer": "respond-async"})
    assert taken.status == 202
    assert taken.headers["preference-applied"] == "respond-async"
    answer = ask(stack.url, taken.headers["location"], headers={"Prefer": "wait=30"})
    assert answer.json["outputs"][0]["data"] == [e2e_stack.slow_answer(7)]


def test_a_long_result_is_kept_whole_and_compressed_if_asked(stack: Stack) -> None:
    """One that does not fit the reply stream: by key, as a job, and in gzip it is the same."""
    body = infer_json("text", "BYTES", [20, 1], [f"text {n}" for n in range(20)])
    key = {"Idempotency-Key": "long-result"}
    expected = ask(stack.url, "/v2/models/minilm/infer", body=body, headers=key)
    assert expected.status == 200
    assert len(expected.body) > 64 * 1024
    assert ask(stack.url, "/v2/models/minilm/infer", body=body, headers=key).body == expected.body

    location = submit(stack.url, "minilm", body, key)
    assert ask(stack.url, location).body == expected.body
    packed = ask(stack.url, location, headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == expected.body


def test_a_job_that_is_late_ends_with_the_error_of_its_deadline(stack: Stack) -> None:
    """It has a deadline of its own, and whoever waits hears of it."""
    first = submit(stack.url, "nap", nap(1500))
    late = submit(stack.url, "nap", nap(0), {"x-request-timeout-ms": "300", "x-request-priority": "low"})
    refused = wait(stack.url, late)
    assert refused.status == 504
    assert "deadline" in refused.error
    assert wait(stack.url, first).status == 200
    assert ask(stack.url, late).status == 504, "the end stays"


def test_a_live_job_can_be_cancelled_and_an_ended_one_forgotten(stack: Stack) -> None:
    """200 for the first, 204 for the second; what was cancelled is never computed."""
    first = submit(stack.url, "nap", nap(1000))
    e2e_stack.eventually(lambda: ask(stack.url, first).json["status"] == "running", within_s=5, what="the first runs")
    second = submit(stack.url, "nap", nap(0))
    job_id = second.rpartition("/")[2]
    cancelled = ask(stack.url, second, method="DELETE")
    assert cancelled.status == 200
    assert cancelled.json == {"id": job_id, "status": "cancelled", "location": second}
    gone = ask(stack.url, second)
    assert gone.status == 410
    assert "cancelled" in gone.error
    assert ask(stack.url, second, method="DELETE").status == 204
    assert ask(stack.url, second).status == 404

    assert wait(stack.url, first).status == 200
    forgotten = ask(stack.url, first, method="DELETE")
    assert (forgotten.status, forgotten.body) == (204, b"")
    assert ask(stack.url, first).status == 404
    assert ask(stack.url, first, method="DELETE").status == 404
    assert not [batch for batch in stack.records(Batch) if job_id in batch.members]


async def test_who_waits_hears_of_a_cancellation_at_once(stack: Stack) -> None:
    """A long poll ends with the job, also by another's hand."""
    first = submit(stack.url, "nap", nap(1500))
    second = submit(stack.url, "nap", nap(0))
    async with e2e_stack.clients() as session:
        waiting = session.get(f"{stack.url}{second}?wait=30")
        async with session.delete(f"{stack.url}{second}") as deleted:
            assert deleted.status == 200
        async with waiting as response:
            assert response.status == 410
        async with session.get(f"{stack.url}{first}?wait=30") as response:
            assert response.status == 200


@pytest.mark.parametrize("job", ["0" * 32, "x", "0" * 33, "%00"])
def test_an_unknown_job_is_not_found(stack: Stack, job: str) -> None:
    """Whatever is asked of it; so is a request that is no job."""
    for method in ("GET", "DELETE"):
        refused = ask(stack.url, f"/v2/models/slow/versions/1/jobs/{job}", method=method)
        assert refused.status == 404
        assert "no job" in refused.error


def test_a_job_belongs_to_its_tenant(stack: Stack) -> None:
    """Others neither see it nor can they end it."""
    ours = {"x-tenant": "us"}
    location = submit(stack.url, "slow", e2e_stack.slow_body(1), ours)
    for headers in ({}, {"x-tenant": "them"}):
        for method in ("GET", "DELETE"):
            assert ask(stack.url, location, method=method, headers=headers).status == 404
    assert ask(stack.url, f"{location}?wait=30", headers=ours).status == 200


def test_a_long_poll_and_a_deadline_are_bounded(stack: Stack, second: str) -> None:
    """By the settings of the gateway that is asked; a wrong wait is told."""
    location = submit(second, "nap", nap(1200), {"x-request-timeout-ms": "1e9"})
    assert wait(second, location, 1000).status == 202
    job_id = location.rpartition("/")[2]
    (record,) = stack.logged(Req, lambda r: r.id == job_id)
    assert record.deadline_ms == 20_000
    for wrong in ("soon", "-1", "nan"):
        refused = ask(stack.url, f"{location}?wait={wrong}")
        assert refused.status == 400
    assert wait(stack.url, location).status == 200


async def test_a_result_has_a_time_to_live(stack: Stack, second: str) -> None:
    """As long as the setting of the gateway that took it on says."""
    queue = Queue("slow", "1")
    location = submit(second, "slow", e2e_stack.slow_body(1))
    assert wait(stack.url, location).status == 200
    job_id = location.rpartition("/")[2]
    async with e2e_stack.broker_of(stack) as broker:
        for key in (queue.record(job_id), queue.payload(job_id)):
            assert 90_000 < await broker.pttl(key) <= 100_000


def test_a_job_outlives_its_gateway(stack: Stack) -> None:
    """kill -9 right after the 202: another gateway has the result."""
    process, url = stack.start_gateway()
    location = submit(url, "nap", nap(300))
    process.signal(signal.SIGKILL)
    assert wait(stack.url, location).status == 200


def test_an_empty_batch_is_no_job(stack: Stack) -> None:
    """Infer answers it at once; a job would have nothing to do."""
    body = infer_json("ms", "INT64", [0, 1], [])
    assert ask(stack.url, "/v2/models/nap/infer", body=body).status == 200
    assert ask(stack.url, "/v2/models/nap/jobs", body=body).status == 400


def test_a_wrong_body_is_refused_as_infer_refuses_it(stack: Stack) -> None:
    """Before anything is submitted."""
    assert ask(stack.url, "/v2/models/slow/jobs", body="{}").status == 400
    assert ask(stack.url, "/v2/models/nobody/jobs", body=nap(1)).status == 404
    assert ask(stack.url, "/v2/models/slow/jobs").status == 405
