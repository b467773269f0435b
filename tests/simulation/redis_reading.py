"""XREAD and XREADGROUP of the model, which may block: what is asked, whether it can be served, what it comes to."""

from dataclasses import dataclass

from simulation.redis_groups import deliver, history
from simulation.redis_streams import ID_MAX, Stream, parse_id
from simulation.redis_values import SYNTAX, Database, RedisError, Reply, integer

NEW = -1
"""The id `>`: what was never delivered to anybody of the group."""


@dataclass(frozen=True, slots=True)
class Read:
    """A read of streams. `block_ms`: None = does not block, 0 = for ever. Without a `group` it is an XREAD."""

    group: bytes
    consumer: bytes
    count: int
    block_ms: int | None
    noack: bool
    after: dict[bytes, int]


def parse(db: Database, a: list[bytes], *, in_group: bool) -> Read:
    """Understand the words behind XREAD or XREADGROUP. Raises RedisError."""
    name = "XREADGROUP" if in_group else "XREAD"
    group = consumer = b""
    count, block_ms, noack, i = 0, None, False, 0
    while i < len(a) and a[i].upper() != b"STREAMS":
        word, left = a[i].upper(), len(a) - i - 1
        if word == b"COUNT" and left:
            count = max(0, integer(a[i + 1]))
            i += 2
        elif word == b"BLOCK" and left:
            block_ms = integer(a[i + 1], "ERR timeout is not an integer or out of range")
            if block_ms < 0:
                raise RedisError("ERR timeout is negative")
            i += 2
        elif word == b"GROUP" and left >= 2:
            if not in_group:
                raise RedisError("ERR The GROUP option is only supported by XREADGROUP. You called XREAD instead.")
            group, consumer = a[i + 1], a[i + 2]
            i += 3
        elif word == b"NOACK":
            if not in_group:
                raise RedisError("ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead.")
            noack = True
            i += 1
        else:
            raise RedisError(SYNTAX)
    words = a[i + 1 :]
    if i >= len(a) or not words:
        raise RedisError(SYNTAX)
    if len(words) % 2:
        raise RedisError(
            f"ERR Unbalanced {name} list of streams: for each stream key an ID or '$' must be specified."
            if not in_group
            else "ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified."
        )
    if in_group and not group:
        raise RedisError("ERR Missing GROUP option for XREADGROUP")
    half = len(words) // 2
    after = {}
    for key, word in zip(words[:half], words[half:], strict=True):
        stream = db.typed(key, Stream)
        if in_group and (stream is None or group not in stream.groups):
            text = f"NOGROUP No such key '{key.decode()}' or consumer group '{group.decode()}'"
            raise RedisError(f"{text} in XREADGROUP with GROUP option")
        after[key] = _position(stream, word, in_group=in_group)
    return Read(group, consumer, count, block_ms, noack, after)


def _position(stream: Stream | None, word: bytes, *, in_group: bool) -> int:
    if word == b"$":
        if in_group:
            raise RedisError(
                "ERR The $ ID is meaningless in the context of XREADGROUP: you want to read the history of this "
                "consumer by specifying a proper ID, or use the > ID to get new messages. The $ ID would just return "
                "an empty result set."
            )
        return stream.last_id if stream is not None else 0
    if word == b">":
        if not in_group:
            raise RedisError("ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> "
                             "<consumer> option.")  # fmt: skip
        return NEW
    return parse_id(word)


def serve(db: Database, read: Read) -> Reply:
    """What there is now, by stream; None when there is nothing."""
    found: list[Reply] = []
    for key, after in read.after.items():
        stream = db.typed(key, Stream)
        if stream is None:
            continue
        if not read.group:
            if ids := stream.between(after + 1, ID_MAX, read.count or -1):
                found.append([key, stream.told(ids)])
            continue
        group = stream.groups[read.group]
        if after != NEW:
            found.append([key, history(db, stream, group, read.consumer, after, read.count)])
        elif stream.ids and stream.ids[-1] > group.last_id:
            ids = deliver(db, stream, group, read.consumer, read.count, noack=read.noack)
            found.append([key, stream.told(ids)])
    return found or None


def serve_blocked(db: Database, read: Read, key: bytes) -> Reply:
    """What a blocked client gets now that something happened to a stream; None: it goes on waiting.

    An entry that came and went in one script wakes it with nothing. Raises RedisError when the client's group is gone.
    """
    stream = db.values.get(key)
    if not isinstance(stream, Stream):
        return None
    if not read.group:
        after = read.after[key]
        ids = stream.between(after + 1, ID_MAX, read.count or -1)
    else:
        group = stream.groups.get(read.group)
        if group is None:
            raise RedisError("NOGROUP the consumer group this client was blocked on no longer exists")
        after = group.last_id
        ids = deliver(db, stream, group, read.consumer, read.count, noack=read.noack) if stream.last_id > after else []
    return [[key, stream.told(ids)]] if stream.last_id > after else None
