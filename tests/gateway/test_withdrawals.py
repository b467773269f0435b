"""A client that leaves while its request is being handed over takes it along, whichever of the two is faster."""

import asyncio

from support.audit import leftovers
from support.scene import AMPLE, Scene
from support.waiting import eventually

from gateway.submit import Submitter
from shared import clock
from shared.broker import requests, scripts
from shared.broker.connection import Connection


async def test_a_cancel_that_overtakes_the_hand_over_is_repeated(scene: Scene, connection: Connection) -> None:
    """Redis has forgotten the hand-over's script, so that it takes a second call, and the cancel comes first.

    The record made then was forgotten under way: its request counted as live, and as its tenant's, until its deadline.
    """
    submitter = Submitter(connection, scene.gateway, inflight_max=10, inflight_bytes_max=1 << 20, limits=AMPLE)
    await connection.call("SCRIPT", "FLUSH")
    await connection.call("SCRIPT", "LOAD", scripts.source("cancel"))
    pending = submitter.submit(
        id="r-1",
        queue=scene.queue,
        payload=b"x",
        traceparent="",
        tracestate="",
        deadline_at_ns=clock.now_ns() + 60_000_000_000,
    )
    while not pending.g3:
        await asyncio.sleep(0)
    submitter.abandon(pending)
    await submitter.drain(5)

    await eventually(lambda: submitter.is_quiet, "all is said")
    assert await requests.peek(connection, scene.queue, ["r-1"]) == [("GONE", b"")]
    assert await leftovers(connection, scene.queue) == []
    assert await connection.call("EXISTS", f"{scene.queue.tag}:c") == 0
