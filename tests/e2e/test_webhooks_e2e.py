"""Webhooks through HTTP: the ends of jobs reach a real server, signed, at least once, whatever dies on the way."""

import hashlib
import hmac
import json
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import e2e_stack
import pytest
import redis
from e2e_stack import Process, Stack, ask, infer_json

from shared.broker import hooks
from shared.events import Evt
from shared.keys import Queue

SECRET = "hook-secret-0123456789"
ALLOWED = ("--webhook-hosts", "127.0.0.1:*", "--webhook-secret", SECRET)
NAP = Queue("nap", "1")


@dataclass
class Receiver:
    """An HTTP server that answers what it is told to, in order, and 200 when that is used up."""

    port: int = 0
    answers: list[int] = field(default_factory=list)
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)
    """While not set, nothing is answered."""

    def url(self, path: str = "/end") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def at(self, path: str) -> list[bytes]:
        """The bodies that came to a path."""
        return [body for where, _, body in self.got if where == path]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """It runs in a thread of the test."""
    receiver = Receiver()
    receiver.hold.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.got.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            receiver.hold.wait(30)
            status = receiver.answers.pop(0) if receiver.answers else 200
            self.send_response(status)
            self.send_header("Content-Length", "0")
            if 300 <= status < 400:
                self.send_header("Location", receiver.url("/elsewhere"))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield receiver
    receiver.hold.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module", autouse=True)
def quick(stack: Stack) -> None:
    """No request is refused for the pace of the naps."""
    e2e_stack.know_that_nap_is_quick(stack)


@pytest.fixture
def sender(stack: Stack) -> Iterator[Process]:
    """A gateway that may send webhooks to this machine, three times each."""
    process, _ = stack.start_gateway(*ALLOWED, "--webhook-tries", "3")
    yield process
    process.stop()
    assert "Traceback" not in process.text
    assert SECRET not in process.text
    assert not [log for log in stack.log_dir.iterdir() if SECRET in log.read_text()]


@pytest.fixture
def telling(sender: Process) -> str:
    """Its address."""
    return sender.says(r"url=(http://\S+)")[1]


def submit(url: str, hook: str, ms: int = 0, **headers: str) -> str:
    """Submit a job whose end is told; its id."""
    body = infer_json("ms", "INT64", [1, 1], [ms])
    taken = ask(url, "/v2/models/nap/jobs", body=body, headers={"x-webhook-url": hook, **headers})
    assert taken.status == 202, taken
    return taken.json["id"]


def arrived(receiver: Receiver, count: int, path: str = "/end") -> list[bytes]:
    """The bodies, once there are so many."""
    e2e_stack.eventually(lambda: len(receiver.at(path)) >= count, within_s=20, what=f"{count} webhooks")
    return receiver.at(path)


def stream_is_empty(stack: Stack) -> bool:
    """Nothing is left to tell."""
    with redis.from_url(stack.redis_url) as broker:
        return broker.xlen(NAP.hooks) == 0 and broker.xpending(NAP.hooks, hooks.GROUP)["pending"] == 0


def test_the_end_of_a_job_is_told_and_signed(stack: Stack, telling: str, receiver: Receiver) -> None:
    """Once, with what a receiver needs to check it and to fetch the result; then nothing is left in Redis."""
    job_id = submit(telling, receiver.url("/end?token=1"))
    (body,) = arrived(receiver, 1, "/end?token=1")
    headers = receiver.got[0][1]
    location = f"/v2/models/nap/versions/1/jobs/{job_id}"
    assert json.loads(body) == {
        "id": job_id, "model": "nap", "version": "1", "status": "done", "location": location,
    }  # fmt: skip
    unix_s, signed = headers["x-tailrace-signature"].removeprefix("t=").split(",v1=")
    assert signed == hmac.new(SECRET.encode(), f"{unix_s}.".encode() + body, hashlib.sha256).hexdigest()
    assert headers["content-type"] == "application/json"
    assert ask(stack.url, location).status == 200
    e2e_stack.eventually(lambda: stream_is_empty(stack), within_s=5, what="nothing is left to tell")
    assert len(receiver.got) == 1


def test_bad_ends_are_told_too(telling: str, receiver: Receiver) -> None:
    """Expired, with its error, and cancelled."""
    first = submit(telling, receiver.url(), 1200)
    late = submit(telling, receiver.url(), 0, **{"x-request-timeout-ms": "300"})
    cancelled = submit(telling, receiver.url(), 0)
    assert ask(telling, f"/v2/models/nap/versions/1/jobs/{cancelled}", method="DELETE").status == 200
    told = {message["id"]: message for message in map(json.loads, arrived(receiver, 3))}
    assert {rid: message["status"] for rid, message in told.items()} == {
        first: "done", late: "expired", cancelled: "cancelled",
    }  # fmt: skip
    assert "deadline" in told[late]["error"]


def test_a_webhook_that_fails_is_tried_again(stack: Stack, telling: str, receiver: Receiver) -> None:
    """After a 500 and a redirect, which is not followed, it comes a third time, signed anew."""
    receiver.answers = [500, 307]
    job_id = submit(telling, receiver.url())
    bodies = arrived(receiver, 3)
    assert {json.loads(body)["id"] for body in bodies} == {job_id}
    assert not receiver.at("/elsewhere")
    e2e_stack.eventually(lambda: stream_is_empty(stack), within_s=5, what="nothing is left to tell")


def test_a_webhook_is_given_up_after_so_many_tries(stack: Stack, telling: str, receiver: Receiver) -> None:
    """With a record in the log that names the host, and not the address."""
    receiver.answers = [500] * 10
    job_id = submit(telling, receiver.url("/token-in-path"))
    (event,) = stack.logged(Evt, lambda e: e.kind == "webhook_given_up" and e.attrs["request"] == job_id, within_s=20)
    assert event.attrs == {"request": job_id, "host": "127.0.0.1", "tries": 3, "reason": "status 500"}
    assert len(receiver.at("/token-in-path")) == 3
    e2e_stack.eventually(lambda: stream_is_empty(stack), within_s=5, what="nothing is left to tell")


def test_a_webhook_outlives_the_gateway_that_was_sending_it(
    stack: Stack, sender: Process, telling: str, receiver: Receiver
) -> None:
    """kill -9 in the middle of a try: another gateway sends it again when its time has come."""
    receiver.hold.clear()
    job_id = submit(telling, receiver.url())
    arrived(receiver, 1)
    sender.signal(signal.SIGKILL)
    receiver.hold.set()
    process, _ = stack.start_gateway(*ALLOWED)
    try:
        with redis.from_url(stack.redis_url) as broker:  # time is moved, not waited for
            (entry,) = broker.xpending_range(NAP.hooks, hooks.GROUP, "-", "+", 10)
            ids = [entry["message_id"]]
            broker.xclaim(NAP.hooks, hooks.GROUP, hooks.CONSUMER, 0, ids, idle=hooks.CLAIM_IDLE_MS, justid=True)
        again = arrived(receiver, 2)
        assert {json.loads(body)["id"] for body in again} == {job_id}
        e2e_stack.eventually(lambda: stream_is_empty(stack), within_s=5, what="nothing is left to tell")
    finally:
        process.stop()


def test_an_address_that_is_not_allowed_is_refused(stack: Stack, telling: str) -> None:
    """By a gateway without the setting, every one; the text names it."""
    body = infer_json("ms", "INT64", [1, 1], [0])
    for url, hook in ((stack.url, "http://127.0.0.1:1/"), (telling, "http://169.254.169.254/")):
        refused = ask(url, "/v2/models/nap/jobs", body=body, headers={"x-webhook-url": hook})
        assert refused.status == 400
        assert "webhook_hosts" in refused.error


def test_a_gateway_needs_a_secret_to_sign_with(stack: Stack) -> None:
    """It does not start without."""
    ended = e2e_stack.run_tailrace(
        "gateway", "--redis", stack.redis_url, "--log-dir", stack.log_dir, "--port", "0", "--webhook-hosts", "a"
    )
    assert ended.returncode == 2
    assert "TAILRACE_WEBHOOK_SECRET" in ended.stderr
