"""Jobs by their id: how far they are, their results, and waiting for them, on whatever gateway they were submitted."""

import asyncio

from gateway.replies import Replies
from gateway.tenants import Tenant
from shared import clock
from shared.broker import requests
from shared.broker.connection import BrokerError, Connection
from shared.broker.requests import Attached
from shared.errors import ErrorKind, TailraceError
from shared.keys import Queue
from shared.lifecycle import State, is_terminal

LOOK_AGAIN_S = 2.0
"""Somebody who waits is rung; but a ring may be lost with a Redis, and a gateway that stops lets everybody go."""
RETRY_S = 0.1


class Results:
    """Finds jobs in Redis."""

    def __init__(self, connection: Connection, replies: Replies, gateway: str) -> None:
        self._connection = connection
        self._replies = replies
        self._gateway = gateway
        self.stopping = False

    async def look(self, queue: Queue, job_id: str) -> Attached:
        """How far a job is. Raises UNAVAILABLE."""
        try:
            return await requests.attach(self._connection, queue, job_id)
        except BrokerError as e:
            raise unavailable(e) from e

    async def find(self, queue: Queue, job_id: str, tenant: Tenant) -> Attached:
        """A job of a tenant. Raises NOT_FOUND, also for what others own or is no job, and UNAVAILABLE."""
        found = await self.look(queue, job_id)
        if found.state == "GONE" or not found.ask or found.tenant != tenant.name:
            raise TailraceError(
                ErrorKind.NOT_FOUND,
                f"there is no job '{job_id}' of {queue}: it never was, or it was deleted, or its time is over",
            )
        return found

    async def until_end(self, queue: Queue, job_id: str, until_ns: int) -> Attached | None:
        """Wait for the end of a job, at most until `until_ns`. None: Redis has not answered."""
        found = None
        while True:
            # First listen, then look: a ring in between is heard.
            with self._replies.following(job_id) as rung:
                try:
                    found = await requests.attach(self._connection, queue, job_id, self._gateway)
                    longest_s = LOOK_AGAIN_S
                except BrokerError:
                    longest_s = RETRY_S
                left_s = (until_ns - clock.now_ns()) / 1e9
                if (found and has_ended(found)) or left_s <= 0 or self.stopping:
                    return found
                await asyncio.wait([rung], timeout=min(left_s, longest_s))

    async def forget(self, queue: Queue, job_id: str) -> None:
        """Delete an ended job. Its idempotency key is free again. Raises UNAVAILABLE."""
        try:
            await requests.forget(self._connection, queue, self._gateway, [job_id])
        except BrokerError as e:
            raise unavailable(e) from e

    async def cancel(self, queue: Queue, job_id: str) -> bool:
        """End a job. False: it had ended before. Raises UNAVAILABLE."""
        try:
            (before,) = await requests.cancel(self._connection, queue, [job_id])
        except BrokerError as e:
            raise unavailable(e) from e
        return before != "GONE" and not is_terminal(State(before))


def has_ended(found: Attached) -> bool:
    """True when nothing will change any more."""
    return found.state == "GONE" or is_terminal(State(found.state))


def stands(found: Attached) -> bool:
    """True when the end is an answer to every later request with the same idempotency key; else it may be run anew."""
    return found.state in (State.DONE, State.FAILED, State.DEAD) and bool(found.answer)


def unavailable(e: BrokerError) -> TailraceError:
    """Redis could not be asked."""
    return TailraceError(ErrorKind.UNAVAILABLE, f"Redis does not answer: {e}; retry after 1 s", retry_after_s=1)
