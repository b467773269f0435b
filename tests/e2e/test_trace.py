"""One trace id and one request id lead from the client through both logs and the queue, and back."""

import asyncio
import json
import secrets
import signal
from collections.abc import Mapping

import e2e_stack
import redis.asyncio
from e2e_stack import Stack

from shared.events import Req, Wreq
from shared.keys import NORMAL, Queue

INFER = "/v2/models/mlp/infer"
BODY = e2e_stack.infer_json("x", "FP32", [1, 64], [0.5] * 64)


async def test_a_clients_trace_id_is_in_the_queue_in_both_logs_and_in_the_response(stack: Stack) -> None:
    """While the only worker is stopped the queued entry has the trace id; then it is answered (complaint 40)."""
    trace_id, parent_span_id = secrets.token_hex(16), secrets.token_hex(8)
    headers = {"traceparent": f"00-{trace_id}-{parent_span_id}-01", "tracestate": "vendor=abc"}
    lane = Queue("mlp", "1").lanes[NORMAL]
    worker = stack.main.child("worker")

    async with redis.asyncio.from_url(stack.redis_url) as broker, e2e_stack.clients() as session:

        async def send() -> tuple[int, Mapping[str, str]]:
            async with session.post(f"{stack.url}{INFER}", data=BODY, headers=headers) as response:
                await response.read()
                return response.status, response.headers

        async def queued() -> list[dict[bytes, bytes]]:
            return [fields for _, fields in await broker.xrange(lane) if trace_id.encode() in fields[b"tp"]]

        worker.send_signal(signal.SIGSTOP)
        try:
            sending = asyncio.create_task(send())
            (entry,) = await e2e_stack.soon(queued, within_s=3, what="the entry is in the stream")
            assert not sending.done()
        finally:
            worker.send_signal(signal.SIGCONT)
        status, received = await sending

    assert status == 200
    (req,) = stack.logged(Req, lambda r: r.trace_id == trace_id)
    (wreq,) = stack.logged(Wreq, lambda w: w.trace_id == trace_id)
    _, in_response, span_id, _ = received["traceparent"].split("-")
    assert in_response == trace_id
    assert span_id == req.span_id != parent_span_id
    assert req.parent_span_id == parent_span_id
    assert wreq.parent_span_id == req.span_id
    assert wreq.id == req.id == received["x-tailrace-request-id"]
    assert entry[b"tp"].decode() == f"00-{trace_id}-{req.span_id}-01"
    assert entry[b"ts"] == b"vendor=abc"
    assert entry[b"r"].decode() == req.id
    assert wreq.entry_id == req.entry_id


def test_without_a_trace_the_gateway_begins_one_and_tells_it(stack: Stack) -> None:
    """A missing or a broken traceparent is no error: the response names the new trace, the logs have it."""
    for sent in ({}, {"traceparent": "00-xyz-1-01"}, {"traceparent": f"00-{'0' * 32}-{'0' * 16}-01"}):
        answer = e2e_stack.ask(stack.url, INFER, body=BODY, headers=sent)

        trace_id = answer.headers["traceparent"].split("-")[1]
        assert answer.status == 200
        assert trace_id != "0" * 32
        stack.logged(Wreq, lambda w, trace_id=trace_id: w.trace_id == trace_id)


def test_a_clients_request_id_is_echoed_logged_and_explained_every_time_it_is_used(stack: Stack) -> None:
    """The label belongs to the client, who may repeat it: `explain` shows every request that bears it."""
    label = f"order-{secrets.token_hex(6)}"
    own_ids = []
    for _ in range(3):
        answer = e2e_stack.ask(stack.url, INFER, body=BODY, headers={"x-request-id": label})
        assert answer.headers["x-request-id"] == label
        own_ids.append(answer.headers["x-tailrace-request-id"])
    stack.logged(Req, lambda r: r.label == label, count=3)

    explained = e2e_stack.run_tailrace("explain", label, "--json", "--log-dir", stack.log_dir)
    as_text = e2e_stack.run_tailrace("explain", label, "--log-dir", stack.log_dir)

    assert explained.returncode == as_text.returncode == 0, explained.stderr + as_text.stderr
    found = [json.loads(line) for line in explained.stdout.splitlines()]
    assert [one["id"] for one in found] == own_ids
    assert {one["label"] for one in found} == {label}
    assert [own_id for own_id in own_ids if own_id in as_text.stdout] == own_ids


def test_without_a_request_id_the_response_names_the_servers_own(stack: Stack) -> None:
    """The id in the response is the one that `explain` takes; the client's id in the body is found too."""
    body = json.dumps({**json.loads(BODY), "id": f"body-{secrets.token_hex(6)}"})
    answer = e2e_stack.ask(stack.url, INFER, body=body)
    own_id = answer.headers["x-request-id"]
    stack.logged(Wreq, lambda w: w.id == own_id)

    for name in (own_id, own_id[-8:], json.loads(body)["id"]):
        explained = e2e_stack.run_tailrace("explain", name, "--json", "--log-dir", stack.log_dir)
        assert json.loads(explained.stdout)["id"] == own_id


def test_explain_of_an_unknown_id_says_what_was_searched(stack: Stack) -> None:
    """A typing error gets a hint and a failing exit status."""
    e2e_stack.ask(stack.url, INFER, body=BODY)

    explained = e2e_stack.run_tailrace("explain", "no-such-request", "--log-dir", stack.log_dir)

    assert explained.returncode == 1
    assert "no request is named 'no-such-request'" in explained.stderr
    assert str(stack.log_dir) in explained.stderr
