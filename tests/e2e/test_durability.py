"""Durable jobs through HTTP: 202 means that a replica has it, 503 names the job that may still run."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import e2e_stack
import pytest
import redis.asyncio
from e2e_stack import Process, Stack, ask, infer_json
from support.proxy import Proxy
from support.servers import NAMES, binaries

from shared.broker.embedded import EmbeddedRedis

JOBS = "/v2/models/nap/jobs"
BODY = infer_json("ms", "INT64", [1, 1], [0])


@pytest.fixture(params=NAMES)
def binary(request: pytest.FixtureRequest) -> str:
    """Each kind of server."""
    return binaries()[request.param]


@pytest.fixture
async def kept(binary: str, short_directory: Path, tmp_path: Path) -> AsyncIterator[Stack]:
    """A gateway and a worker on a Redis with an append-only file; nobody replicates it yet."""
    server = EmbeddedRedis(short_directory / "r", binary=binary)
    await server.start()
    repository = e2e_stack.make_repository(tmp_path / "models", {"nap": e2e_stack.OWN_MODELS / "nap"})
    common = ("--redis", server.url, "--log-dir", tmp_path / "logs")
    started = [
        Process("gateway", *common, "--port", "0", "--durable-wait-s", "1.5", directory=short_directory),
        Process("worker", *common, "--model-repository", repository, directory=short_directory),
    ]
    try:
        url = started[0].says(r"url=(http://\S+)")[1]
        ready = "/v2/health/ready"
        e2e_stack.eventually(lambda: ask(url, ready).status == 200, within_s=e2e_stack.START_S, what="ready")
        yield Stack(url, server.url, tmp_path / "logs", short_directory, started[0])
    finally:
        for process in started:
            process.stop()
        await server.stop()


async def test_a_job_for_a_replica_needs_one(kept: Stack, binary: str, short_directory: Path) -> None:
    """Without: 503 with the id, but the job runs, and its key finds it. With: 202."""
    durable = {"x-durability": "replica", "Idempotency-Key": "k-1"}
    refused = ask(kept.url, JOBS, body=BODY, headers=durable)
    assert refused.status == 503
    assert refused.headers["retry-after"] == "1"
    assert "a replica did not confirm to have it within 1.5 s" in refused.error
    location = re.search(r"GET (\S+) follows", refused.error)[1]
    assert ask(kept.url, f"{location}?wait=30").status == 200

    replica = EmbeddedRedis(short_directory / "2", appendonly=False, binary=binary)
    await replica.start()
    try:
        async with Proxy(Path(kept.redis_url.removeprefix("unix://"))) as proxy:
            host, _, port = proxy.url.rpartition("/")[2].rpartition(":")
            async with e2e_stack.broker_of(kept) as broker, redis.asyncio.from_url(replica.url) as other:
                await broker.config_set("repl-diskless-sync-delay", 0)
                await other.config_set("repl-diskless-sync-delay", 0)
                await other.replicaof(host, port)

                async def follows() -> bool:
                    return (await other.info("replication"))["master_link_status"] == "up"

                await e2e_stack.soon(follows, within_s=20, what="the replica follows")
            found, new = await asyncio.gather(
                asyncio.to_thread(ask, kept.url, JOBS, body=BODY, headers=durable),
                asyncio.to_thread(ask, kept.url, JOBS, body=BODY, headers={"x-durability": "replica"}),
            )
    finally:
        await replica.stop()
    assert (found.status, found.headers["location"]) == (202, location)
    assert new.status == 202


async def test_a_job_for_the_disk_needs_a_server_that_can_say_so(kept: Stack) -> None:
    """202 from Redis 7.2 on; an older one is told before anything is submitted."""
    async with e2e_stack.broker_of(kept) as broker:
        can = "waitaof" in await broker.command()
    answer = ask(kept.url, JOBS, body=BODY, headers={"x-durability": "fsync"})
    if can:
        assert answer.status == 202
    else:
        assert answer.status == 501
        assert "cannot confirm" in answer.error
        assert "x-durability" in answer.error


def test_the_setting_holds_for_jobs_that_name_nothing(kept: Stack) -> None:
    """--job-durability; the header goes before it."""
    process, url = kept.start_gateway("--job-durability", "replica", "--durable-wait-s", "0.2")
    try:
        refused = ask(url, JOBS, body=BODY)
        assert refused.status == 503
        assert "within 0.2 s" in refused.error
        assert ask(url, JOBS, body=BODY, headers={"x-durability": "none"}).status == 202
    finally:
        process.stop()


def test_a_wrong_durability_is_refused(kept: Stack) -> None:
    """With those that there are; none needs nothing."""
    assert ask(kept.url, JOBS, body=BODY, headers={"x-durability": "paper"}).status == 400
    assert ask(kept.url, JOBS, body=BODY, headers={"x-durability": "none"}).status == 202
