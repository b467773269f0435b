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


@dataclass(frozen=True, slots=True)
class Queue:
    """The queue of one version of one model.

    Lanes are read in order: `retry` holds what a dead worker left behind, so it goes first.
    """

    model: str
    version: str
    shard: int = 0
    tag: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tag", f"{PREFIX}:{{{self.model}/{self.version}|{self.shard}}}")

    @property
    def records(self) -> str:
        """Prefix of the request records (hashes): the truth about each request."""
        return f"{self.tag}:r:"

    @property
    def payloads(self) -> str:
        """Prefix of the requests' payloads (strings); the answer takes the payload's place."""
        return f"{self.tag}:p:"

    @property
    def lanes(self) -> tuple[str, str]:
        """Streams with consumer group `GROUP`: retry, interactive."""
        return (f"{self.tag}:q:0", f"{self.tag}:q:1")

    @property
    def deadlines(self) -> str:
        """Sorted set: request -> deadline, microseconds of Redis' clock."""
        return f"{self.tag}:dl"

    @property
    def leases(self) -> str:
        """Sorted set: worker -> lease expiry, microseconds of Redis' clock."""
        return f"{self.tag}:hb"

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
        """Hash of cumulative counters, kept by the complete script."""
        return f"{self.tag}:stats"

    @property
    def reply_prefix(self) -> str:
        """Prefix of the gateways' reply streams."""
        return f"{self.tag}:g:"

    def replies(self, gateway: str) -> str:
        """The reply stream of one gateway."""
        return f"{self.tag}:g:{gateway}"

    def __str__(self) -> str:
        return f"{self.model}/{self.version}"
