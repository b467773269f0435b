"""complaints 32 and 33: every setting has the effect that its help promises, through a real process, and no other."""

import asyncio
import re
import signal
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import e2e_stack
import pytest
from e2e_stack import Answer, Process, Stack

from shared.events import Cfg, Hello, Req
from shared.settings import GatewaySettings, WorkerSettings

ROOT = Path(__file__).parents[2]
SLOW = "/v2/models/slow/infer"

SHOWN_ELSEWHERE = {
    "redis": "tests/broker/test_failover.py",
    "lease_s": "tests/e2e/test_failures.py",
    "model_repository": "tests/e2e/test_scale.py",
    "pass_max_s": "tests/e2e/test_poison.py",
    "gateways": "tests/e2e/test_scale.py",
    "bulk_dir": "tests/e2e/test_large_tensors.py",
    "learned_dir": "tests/e2e/test_batch_choice.py",
    "tenants": "tests/e2e/test_tenants_e2e.py",
    "job_timeout_s": "tests/e2e/test_jobs.py",
    "job_ttl_s": "tests/e2e/test_jobs.py",
    "job_wait_s": "tests/e2e/test_jobs.py",
    "job_durability": "tests/e2e/test_durability.py",
    "durable_wait_s": "tests/e2e/test_durability.py",
    "idempotency_ttl_s": "tests/e2e/test_idempotency.py",
    "webhook_hosts": "tests/e2e/test_webhooks_e2e.py",
    "webhook_secret": "tests/e2e/test_webhooks_e2e.py",
    "webhook_tries": "tests/e2e/test_webhooks_e2e.py",
}
"""Settings whose effect a test of its own shows, which must name the setting."""


@pytest.fixture(autouse=True)
def stop_what_it_started(stack: Stack) -> Iterator[None]:
    """A gateway for each setting is too many to keep."""
    before = len(stack.started)
    yield
    while len(stack.started) > before:
        stack.started.pop().stop()


def ask_slow(url: str, n: int = 1, **headers: str) -> Answer:
    """One question to `slow`, which takes a tenth of a second."""
    return e2e_stack.ask(url, SLOW, body=e2e_stack.slow_body(n), headers=headers)


def crowd(url: str) -> list[e2e_stack.Reply]:
    """Forty questions to `slow` at once."""
    return asyncio.run(e2e_stack.ask_many(url, range(40), at_once=40))


def refused(replies: list[e2e_stack.Reply], text: str) -> bool:
    """Some were refused, each with 429, for the reason that `text` is a part of; the others were answered right."""
    out = [r for r in replies if r.status == 429 and text in r.text and "Retry-After" in r.headers]
    return bool(out) and not e2e_stack.wrong([r for r in replies if r not in out])


def test_host(stack: Stack) -> None:
    """--host: the address it listens on."""
    _, url = stack.start_gateway("--host", "127.0.0.2")
    assert url.startswith("http://127.0.0.2:")


def test_port_and_log_level(stack: Stack, unused_tcp_port: int) -> None:
    """--port: there it listens. --log-level error: people hear nothing while nothing is wrong."""
    process = stack._start("gateway", "--port", str(unused_tcp_port), "--log-level", "error")
    url = f"http://127.0.0.1:{unused_tcp_port}"
    e2e_stack.eventually(lambda: e2e_stack.ask(url, "/v2/health/live").status == 200, within_s=10, what="it listens")
    assert process.text == ""


def test_log_dir(stack: Stack, tmp_path: Path) -> None:
    """--log-dir: there its event log is, and its settings in it."""
    stack.start_gateway("--log-dir", str(tmp_path))
    (path,) = tmp_path.glob("gateway-*.jsonl")
    e2e_stack.eventually(lambda: '"t":"cfg"' in path.read_text(), within_s=5, what="the settings are logged")


def test_request_timeout_s(stack: Stack) -> None:
    """--request-timeout-s: the deadline of a request that names none, and the longest that one may name."""
    _, url = stack.start_gateway("--request-timeout-s", "0.03")
    assert ask_slow(url).status == 504
    assert ask_slow(url, **{"x-request-timeout-ms": "5000"}).status == 504


def test_body_bytes_max(stack: Stack) -> None:
    """--body-bytes-max: larger bodies are refused with 413, which names the setting."""
    _, url = stack.start_gateway("--body-bytes-max", "50")
    answer = ask_slow(url)
    assert answer.status == 413
    assert "TAILRACE_BODY_BYTES_MAX" in answer.error


@pytest.mark.parametrize(
    ("flag", "value", "text"),
    [
        ("--inflight-max", "4", "this gateway holds 4 requests"),
        ("--inflight-bytes-max", "200", "bytes already"),
        ("--queue-max", "4", "requests are queued or running"),
        ("--queue-bytes-max", "200", "bytes of payloads"),
        ("--tenant-max", "4", "which is its limit"),
    ],
)
def test_bounds(stack: Stack, flag: str, value: str, text: str) -> None:
    """Each bound refuses what goes beyond it, for its own reason, and answers the rest."""
    _, url = stack.start_gateway(flag, value)
    assert refused(crowd(url), text)


def test_drain_s(stack: Stack) -> None:
    """--drain-s: how long what is held may take after SIGTERM; with none, a gateway does not wait for it."""
    process, url = stack.start_gateway("--drain-s", "0")
    asked: list[e2e_stack.Reply] = []

    async def interrupt() -> None:
        asking = asyncio.create_task(e2e_stack.ask_many(url, range(400), at_once=400, replies=asked))
        await e2e_stack.soon(lambda: len(asked) >= 1, within_s=10, what="a first answer")
        process.signal(signal.SIGTERM)
        await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(interrupt())
    process.wait_ended(within_s=10)
    given_up = e2e_stack.wrong(asked)
    assert len(asked) - len(given_up) < 400
    assert {reply.status for reply in given_up} <= {503}


def test_models_and_threads(stack: Stack, repository: Path) -> None:
    """--models: only these are served. --threads: torch threads of a pass. --device: a wrong one is refused."""
    process = stack.start_worker(repository, "--models", "pair,slow", "--threads", "2")
    name = process.says(r"worker=(\S+)")[1]
    assert re.search(r'models="?pair/1,slow/1', process.text)
    hello = [h for h in stack.records(Hello) if h.torch_threads == 2]
    assert hello
    assert name
    none = Process("worker", "--redis", stack.redis_url, "--device", "tpu", "--log-dir", str(stack.log_dir),
                   directory=stack.directory)  # fmt: skip
    assert none.wait_ended() == 2
    assert "unknown device 'tpu'" in none.text


EFFECTS: dict[str, Callable[..., None] | Callable[..., Coroutine[Any, Any, None]]] = {
    "host": test_host,
    "port": test_port_and_log_level,
    "log_level": test_port_and_log_level,
    "log_dir": test_log_dir,
    "request_timeout_s": test_request_timeout_s,
    "body_bytes_max": test_body_bytes_max,
    "inflight_max": test_bounds,
    "inflight_bytes_max": test_bounds,
    "queue_max": test_bounds,
    "queue_bytes_max": test_bounds,
    "tenant_max": test_bounds,
    "drain_s": test_drain_s,
    "models": test_models_and_threads,
    "threads": test_models_and_threads,
    "device": test_models_and_threads,
}


def test_every_setting_is_here() -> None:
    """A new setting needs a test of its effect: here, or in a file that names it."""
    known = {f.name for kind in (GatewaySettings, WorkerSettings) for f in fields(kind)}
    assert known == EFFECTS.keys() | SHOWN_ELSEWHERE.keys()
    for name, file in SHOWN_ELSEWHERE.items():
        text = (ROOT / file).read_text()
        assert name in text.lower() or name.replace("_", "-") in text, f"{file} does not name {name}"


def test_a_setting_changes_itself_alone(stack: Stack) -> None:
    """complaints 32: the effective settings of a gateway with one flag differ from another's in that flag alone."""
    stack.start_gateway("--queue-max", "77")
    stack.start_gateway("--queue-max", "78")

    def both() -> list[dict[str, Any]]:
        found = [c.config for c in stack.records(Cfg) if c.config.get("queue_max") in (77, 78)]
        return found if len(found) == 2 else []

    one, other = e2e_stack.eventually(both, within_s=10, what="both have logged their settings")
    assert {k for k in one if one[k] != other[k]} == {"queue_max"}
    assert not [r for r in stack.records(Req) if r.error_code == "internal"]
