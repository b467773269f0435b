"""Tenants through HTTP: keys, rates, bounds, and turns in a backlog."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import e2e_stack
import pytest
from e2e_stack import Stack, ask, infer_json, slow_body

from shared import clock
from shared.events import Cfg, Req

INFER = "/v2/models/slow/infer"
SHOP, LAB = "shop-key-0123456789", "lab-key-0123456789"
TENANTS = f"""
[[tenant]]
name = "shop"
key = "{SHOP}"

[[tenant]]
name = "lab"
key = "{LAB}"
rate_per_s = 0.5
burst = 2
"""


@pytest.fixture(scope="module")
def guarded(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway that wants keys."""
    file = tmp_path_factory.mktemp("tenants") / "tenants.toml"
    file.write_text(TENANTS)
    process, url = stack.start_gateway("--tenants", str(file))
    yield url
    assert "Traceback" not in process.text
    process.stop()


def test_without_a_key_only_health_and_metadata_are_open(guarded: str) -> None:
    """Inference, embeddings and the repository answer 401 in the form of each interface."""
    for path in (
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/slow",
        "/v2/models/slow/stats",
        "/v1/models",
    ):
        assert ask(guarded, path).status == 200, path
    for path in (INFER, "/v2/repository/index", "/v2/repository/models/slow/unload"):
        for headers in ({}, {"x-api-key": "wrong"}, {"x-tenant": "shop"}):
            refused = ask(guarded, path, body=slow_body(1), headers=headers)
            assert refused.status == 401, path
            assert refused.headers["www-authenticate"] == "Bearer"
            assert "Authorization: Bearer KEY" in refused.error
    body = json.dumps({"model": "minilm", "input": "a cat"})
    refused = ask(guarded, "/v1/embeddings", body=body)
    assert refused.status == 401
    assert refused.json["error"]["code"] == "unauthorized"
    assert ask(guarded, "/v1/embeddings", body=body, headers={"Authorization": f"Bearer {SHOP}"}).status == 200


def test_a_key_opens_the_door_and_the_log_has_the_tenants_name_but_no_key(guarded: str, stack: Stack) -> None:
    """By both headers; the name stands in the request's record."""
    for headers in ({"x-api-key": SHOP}, {"Authorization": f"Bearer {SHOP}"}):
        answer = ask(guarded, INFER, body=slow_body(3), headers=headers)
        assert answer.status == 200
        assert answer.json["outputs"][0]["data"] == [e2e_stack.slow_answer(3)]
        rid = answer.headers["x-tailrace-request-id"]
        (record,) = stack.logged(Req, lambda r, rid=rid: r.id == rid)
        assert record.tenant == "shop"
    assert ask(guarded, "/v2/repository/index", method="POST", headers={"x-api-key": SHOP}).status == 200
    stack.logged(Cfg, lambda c: "tenants" in c.config)
    written = "".join(file.read_text() for file in stack.log_dir.iterdir())
    assert SHOP not in written
    assert LAB not in written


def test_a_tenant_that_is_too_fast_is_told_when_to_come_back(guarded: str) -> None:
    """Of three at once two pass (the burst); the third gets 429 with the reason and the seconds, at once."""
    replies = asyncio.run(e2e_stack.ask_at_once(guarded, range(3), {"x-api-key": LAB}))

    assert sorted(reply.status for reply in replies) == [200, 200, 429]
    (refused,) = [reply for reply in replies if reply.status == 429]
    assert refused.headers["Retry-After"] in ("1", "2")
    assert "0.5 requests a second" in refused.text
    assert "tenant 'lab'" in refused.text
    assert f"retry after {refused.headers['Retry-After']} s" in refused.text
    assert ask(guarded, INFER, body=slow_body(1), headers={"x-api-key": SHOP}).status == 200, "others are not slowed"


def test_a_wrong_file_is_told_at_start_all_at_once(stack: Stack, tmp_path: Path) -> None:
    """The gateway does not start, and names every mistake."""
    file = tmp_path / "tenants.toml"
    file.write_text('[[tenant]]\nname = "a b"\nkey = "short"\nweight = -1\n')

    ended = e2e_stack.run_tailrace(
        "gateway", "--redis", stack.redis_url, "--log-dir", tmp_path, "--port", "0", "--tenants", file
    )

    assert ended.returncode == 2
    for words in ("name", "16 ASCII characters", "weight is -1"):
        assert words in ended.stderr
    assert "short" not in ended.stderr


async def test_a_tenant_may_take_up_only_its_share_of_a_queue(stack: Stack) -> None:
    """With room for 20 of each tenant, exactly the 30 beyond are refused; another tenant still comes in.

    The worker stands still while they come, however long that takes.
    """
    process, url = await asyncio.to_thread(stack.start_gateway, "--tenant-max", "20")
    worker = stack.main.child("worker")
    worker.suspend()
    try:
        async with e2e_stack.clients() as session:
            flood = [
                asyncio.create_task(e2e_stack.ask_slow(session, url, n, headers={"x-tenant": "flood"}))
                for n in range(50)
            ]
            waiting = asyncio.create_task(e2e_stack.ask_at_once(url, range(4), {"x-tenant": "polite"}))
            await e2e_stack.soon(lambda: sum(f.done() for f in flood) >= 30, within_s=20, what="30 are refused")
            worker.resume()
            replies, polite = await asyncio.gather(*flood), await waiting
    finally:
        worker.resume()
        process.stop()

    assert not e2e_stack.wrong(polite)
    refused = [reply for reply in replies if reply.status == 429]
    assert len(refused) == 30
    assert not e2e_stack.wrong(reply for reply in replies if reply.status != 429)
    for reply in refused:
        assert reply.headers["Retry-After"] == "1"
        assert "tenant 'flood' has 20 requests" in reply.text


async def test_a_flood_of_one_tenant_does_not_bury_another(stack: Stack) -> None:
    """A sends 400 at once; of B's 8, sent when A's are queued, the last is answered before most of A's."""
    flood = asyncio.create_task(e2e_stack.ask_at_once(stack.url, range(400), {"x-tenant": "a"}))
    async with e2e_stack.clients() as session, e2e_stack.broker_of(stack) as broker:

        async def queued() -> bool:
            return await e2e_stack.live(broker, "slow") >= 300

        await e2e_stack.soon(queued, within_s=20, what="A's backlog")
        sent_ns = clock.now_ns()
        few = await asyncio.gather(
            *(e2e_stack.ask_slow(session, stack.url, n, headers={"x-tenant": "b"}) for n in range(8))
        )
    many = await flood

    assert not e2e_stack.wrong([*few, *many])
    last = max(reply.at_ns for reply in few)
    after = sum(reply.at_ns > last for reply in many)
    assert after >= 150, (after, (last - sent_ns) / 1e9)


def test_a_tenants_name_needs_no_file(stack: Stack) -> None:
    """x-tenant names one; a name that could not be a key is refused."""
    answer = ask(stack.url, INFER, body=slow_body(1), headers={"x-tenant": "shop"})
    assert answer.status == 200
    (record,) = stack.logged(Req, lambda r: r.id == answer.headers["x-tailrace-request-id"])
    assert record.tenant == "shop"
    refused = ask(stack.url, INFER, body=slow_body(1), headers={"x-tenant": "a b"})
    assert refused.status == 400
    assert "x-tenant" in refused.error


def test_a_wrong_priority_is_a_bad_request(stack: Stack) -> None:
    """On both interfaces; right ones are answered, by header and by Triton's parameter."""
    assert ask(stack.url, INFER, body=slow_body(1), headers={"x-request-priority": "urgent"}).status == 400
    assert ask(stack.url, INFER, body=slow_body(1), headers={"x-request-priority": "high"}).status == 200
    body = infer_json("n", "INT64", [1, 1], [1], parameters={"priority": 3})
    assert ask(stack.url, INFER, body=body).status == 200
    embed = json.dumps({"model": "minilm", "input": "a cat"})
    assert ask(stack.url, "/v1/embeddings", body=embed, headers={"x-request-priority": "x"}).status == 400
