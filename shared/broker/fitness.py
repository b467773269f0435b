"""Whether a server may serve us: a primary, no cluster, none that evicts keys. Its replies in, a reason not to out."""

from typing import Any

ROUTINE = frozenset({"NOSCRIPT", "NOGROUP", "BUSYGROUP", "UNBLOCKED"})
"""Errors that the calls expect and mend by themselves."""
ELSEWHERE = frozenset({"READONLY", "MASTERDOWN"})
"""Errors that say: this server is not the primary (any more).

LOADING passes, and CLUSTERDOWN and NOREPLICAS are troubles of the right server: another connection would not help.
"""


def why_not_primary(role: Any) -> str:
    """What is wrong with a server whose ROLE says this; empty for a primary."""
    kind = role[0] if isinstance(role, list) and role else b""
    if kind == b"slave":
        where = f"{role[1].decode()}:{role[2]}"
        return f"it is a replica of {where}; name its primary, or promote it (REPLICAOF NO ONE)"
    if kind == b"sentinel":
        return "it is a Sentinel; name the servers that it watches instead, with commas between"
    return ""


def why_cluster(info_cluster: bytes) -> str:
    """Why a server with this INFO cluster is of no use to us; empty if it stands alone, or does not say."""
    if b"cluster_enabled:1" not in info_cluster:
        return ""
    return "it is a node of a Redis Cluster, which tailrace cannot use; name a server of its own, replicas are welcome"


def why_it_evicts(info_memory: bytes) -> str:
    """Why a server with this INFO memory might delete our keys; empty if it never does. ValueError: it does not say."""
    facts = dict(line.split(b":", 1) for line in info_memory.splitlines() if b":" in line)
    policy, limit = facts.get(b"maxmemory_policy"), facts.get(b"maxmemory", b"")
    if policy is None or not limit.isdigit():
        raise ValueError
    if policy == b"noeviction" or int(limit) == 0:
        return ""
    return (
        f"it has maxmemory-policy {policy.decode()} with maxmemory {int(limit)}: when its memory is full it would "
        "delete requests in silence. Set `maxmemory-policy noeviction` there, so that it refuses new requests instead, "
        "or take another server"
    )
