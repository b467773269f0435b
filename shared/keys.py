"""Every Redis key and field name. All keys of one queue share a hash tag, so that one script may touch them all."""

import re
from dataclasses import dataclass, field

PREFIX = "tailrace"
GROUP = "w"
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""What a model or version may be called: safe in a key, a path and a URL."""

FLEET_WORKERS = f"{PREFIX}:{{fleet}}:workers"
"""Hash: worker -> its descriptor (msgpack, see `wire.WorkerDescriptor`)."""
FLEET_LEASES = f"{PREFIX}:{{fleet}}:leases"
"""Sorted set: worker -> expiry by Redis' clock, microseconds."""
FLEET_VERSION = f"{PREFIX}:{{fleet}}:version"
"""Moves (a time) when a worker joins, changes or leaves, or a model is withdrawn or offered."""
FLEET_UNLOADED = f"{PREFIX}:{{fleet}}:unloaded"
"""Set: models that an operator withdrew from the clients."""
FLEET_SURVEYED = f"{PREFIX}:{{fleet}}:surveyed"
"""String: when a gateway last looked; its gap tells that Redis itself stood still."""

DURABLE_MARK = f"{PREFIX}:{{fleet}}:durable"
"""String with a TTL: written so that its replication can be waited for."""

RETRY, HIGH, NORMAL, LOW, SUSPECTS = range(5)
"""The lanes of a queue. The middle three are also the priorities of a request."""


def rate_limit(tenant: str) -> str:
    """String with a TTL: how far a tenant has used its rate up, over all models (GCRA)."""
    return f"{PREFIX}:{{fleet}}:rate:{tenant}"


@dataclass(frozen=True, slots=True)
class Queue:
    """The queue of one version of one model. All its keys begin with `tag`; the scripts put the rest together.

    Workers read `lanes` in this order: what dead workers left behind goes first, then by priority.
    """

    model: str
    version: str
    shard: int = 0
    tag: str = field(init=False, compare=False)
    lanes: tuple[str, str, str, str] = field(init=False, compare=False)
    """Streams with consumer group `GROUP`: retry, high, normal, low."""
    suspects: str = field(init=False, compare=False)
    """Stream with the same group: requests whose batch ended its process; each runs alone, one in the whole fleet."""

    def __post_init__(self) -> None:
        tag = f"{PREFIX}:{{{self.model}/{self.version}|{self.shard}}}"
        object.__setattr__(self, "tag", tag)
        object.__setattr__(self, "lanes", tuple(f"{tag}:q:{lane}" for lane in (RETRY, HIGH, NORMAL, LOW)))
        object.__setattr__(self, "suspects", f"{tag}:q:{SUSPECTS}")

    def record(self, request_id: str) -> str:
        """Hash: the truth about a request."""
        return f"{self.tag}:r:{request_id}"

    def payload(self, request_id: str) -> str:
        """String: a request's payload; the answer takes its place."""
        return f"{self.tag}:p:{request_id}"

    @property
    def deadlines(self) -> str:
        """Sorted set: every live request -> deadline, microseconds of Redis' clock."""
        return f"{self.tag}:dl"

    @property
    def counts(self) -> str:
        """Hash: live requests by priority (l1 l2 l3) and by tenant (t:NAME), bytes of their payloads (b)."""
        return f"{self.tag}:c"

    @property
    def leases(self) -> str:
        """Sorted set: worker -> lease expiry, microseconds of Redis' clock."""
        return f"{self.tag}:hb"

    @property
    def running(self) -> str:
        """Hash: worker -> ids of what its device computes now, with spaces between."""
        return f"{self.tag}:run"

    @property
    def tick(self) -> str:
        """String: when the last tick ran; its gap tells that Redis itself stood still."""
        return f"{self.tag}:tick"

    @property
    def leader(self) -> str:
        """String with a TTL: who runs the tick."""
        return f"{self.tag}:lead"

    @property
    def stats(self) -> str:
        """Hash of cumulative counters."""
        return f"{self.tag}:stats"

    @property
    def dead_letters(self) -> str:
        """Stream of requests that were given up, each whole in one entry."""
        return f"{self.tag}:dlq"

    @property
    def hooks(self) -> str:
        """Stream of finished jobs whose end must be told to a webhook."""
        return f"{self.tag}:hooks"

    def replies(self, gateway: str) -> str:
        """The reply stream of one gateway."""
        return f"{self.tag}:g:{gateway}"

    def control(self, worker: str) -> str:
        """Stream with a TTL: requests that a worker holds and need not run any more."""
        return f"{self.tag}:k:{worker}"

    def __str__(self) -> str:
        return f"{self.model}/{self.version}"
