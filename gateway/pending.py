"""A request between its hand-over and its answer."""

import asyncio
from dataclasses import dataclass, field

from gateway.claims import Held
from gateway.tenants import ANYONE, Tenant
from shared import wire
from shared.broker import requests
from shared.errors import ErrorKind
from shared.keys import NORMAL, Queue


class SameRequest(Exception):
    """The client's idempotency key belongs to an earlier request, `request_id`, which is this one's answer too."""

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self.request_id = request_id


ACCEPTED = wire.Reply(wire.ReplyBody(), None)
"""The answer of a job that nobody waits for: it is in the queue."""


@dataclass(slots=True, eq=False)
class Pending:
    """A request between hand-over and answer, or a parcel of such.

    Stamps g3..g5 in ns as in docs/architecture.md, 0 = not reached. `company`: so many like it fit a pass. Only a
    parcel has `members`.
    """

    id: str
    queue: Queue
    payload: bytes
    traceparent: str
    tracestate: str
    deadline_at_ns: int
    late: ErrorKind
    answer: "asyncio.Future[wire.Reply]"
    tenant: Tenant = ANYONE
    priority: int = NORMAL
    job: requests.Job | None = None
    company: int = 1
    g3: int = 0
    g4: int = 0
    g5: int = 0
    entry_id: str = ""
    submits: int = 0
    looked_up_at_ns: int = 0
    due: int = 0
    """Which of the submitter's timers watches its deadline."""
    withdrawn: str = ""
    """CANCELLED or EXPIRED once Redis is to be told that nobody waits for it any more."""
    parcel: "Pending | None" = None
    members: "list[Pending]" = field(default_factory=list)
    held: Held | None = None
    """The file of its tensors, if the payload is a claim for them."""

    @property
    def size(self) -> int:
        """Bytes that are kept for it."""
        return len(self.payload) + (self.held.size if self.held else 0)

    def take_stamps_of(self, parcel: "Pending") -> None:
        """This member leaves its parcel: so far it came in it."""
        self.g3, self.g4, self.entry_id, self.submits = parcel.g3, parcel.g4, parcel.entry_id, parcel.submits
