"""Which model's queue goes next when several share a device: the one whose oldest request has waited longest."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from shared.policy.batching import Waiting

K = TypeVar("K")


def oldest_first(queues: Mapping[K, Sequence[Waiting]]) -> list[K]:
    """The queues that have somebody waiting, by the arrival of their oldest request."""
    return sorted((k for k, waiting in queues.items() if waiting), key=lambda k: queues[k][0].since_ns)
