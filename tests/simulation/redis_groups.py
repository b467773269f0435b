"""The model's consumer groups: reading through them, what is pending, and what there is to know about a stream."""

from simulation.redis_streams import (
    ID_MAX,
    Group,
    Nack,
    Stream,
    bound,
    parse_id,
    show_id,
)
from simulation.redis_values import (
    OK,
    SYNTAX,
    Database,
    RedisError,
    Reply,
    command,
    integer,
)

NO_KEY_FOR_GROUP = (
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM "
    "option to create an empty stream automatically."
)


def deliver(db: Database, stream: Stream, group: Group, consumer: bytes, count: int, *, noack: bool) -> list[int]:
    """Give new entries to a consumer; they are pending from now on."""
    ids = stream.between(group.last_id + 1, ID_MAX, count or -1)
    now = db.now_ms()
    group.consumers[consumer] = now
    for id in ids:
        group.last_id = id
        if not noack:
            group.pending[id] = Nack(consumer, now, 1)
    return ids


def history(db: Database, stream: Stream, group: Group, consumer: bytes, after: int, count: int) -> list[Reply]:
    """What is pending for a consumer behind an id, delivered once more."""
    now = db.now_ms()
    group.consumers[consumer] = now
    mine = [(id, nack) for id, nack in group.of(consumer) if id > after]
    for id, nack in mine[: count or None]:
        if id in stream.entries:
            nack.delivered_at_ms = now
            nack.count += 1
    return stream.told([id for id, _ in mine[: count or None]])


def find_group(db: Database, key: bytes, name: bytes) -> tuple[Stream, Group]:
    """Raises RedisError when there is no such key or group."""
    stream = db.typed(key, Stream)
    group = stream.groups.get(name) if stream is not None else None
    if stream is None or group is None:
        raise RedisError(f"NOGROUP No such key '{key.decode()}' or consumer group '{name.decode()}'")
    return stream, group


@command("XACK", -4, writes=True)
def xack(db: Database, a: list[bytes]) -> Reply:
    stream = db.typed(a[0], Stream)
    group = stream.groups.get(a[1]) if stream is not None else None
    if group is None:
        return 0
    ids = [parse_id(word) for word in a[2:]]
    return sum(group.pending.pop(id, None) is not None for id in ids)


@command("XPENDING", -3)
def xpending(db: Database, a: list[bytes]) -> Reply:
    options, idle_min = a[2:], 0
    if options and options[0].upper() == b"IDLE":
        if len(options) < 5:
            raise RedisError(SYNTAX)
        idle_min, options = integer(options[1]), options[2:]
    if options and len(options) not in (3, 4):
        raise RedisError(SYNTAX)
    if options:
        count = max(0, integer(options[2]))
        first, last = bound(options[0], upper=False), bound(options[1], upper=True)
    _, group = find_group(db, a[0], a[1])
    if not options:
        return _summary(group)
    now = db.now_ms()
    mine = group.of(options[3]) if len(options) == 4 else sorted(group.pending.items())
    found = [
        [show_id(id), nack.consumer, max(0, now - nack.delivered_at_ms), nack.count]
        for id, nack in mine
        if first <= id <= last and now - nack.delivered_at_ms >= idle_min
    ]
    return found[:count]


def _summary(group: Group) -> Reply:
    if not group.pending:
        return [0, None, None, None]
    held: dict[bytes, int] = {}
    for nack in group.pending.values():
        held[nack.consumer] = held.get(nack.consumer, 0) + 1
    by_name: list[Reply] = [[name, b"%d" % n] for name, n in sorted(held.items())]
    return [len(group.pending), show_id(min(group.pending)), show_id(max(group.pending)), by_name]


@command("XCLAIM", -6, deny_oom=True)
def xclaim(db: Database, a: list[bytes]) -> Reply:
    stream, group = find_group(db, a[0], a[1])
    consumer, idle_min = a[2], max(0, integer(a[3], "ERR Invalid min-idle-time argument for XCLAIM"))
    i = 4
    ids = []
    while i < len(a) and a[i][:1].isdigit():
        ids.append(parse_id(a[i]))
        i += 1
    now = db.now_ms()
    at_ms, retries, force, just_ids = now, None, False, False
    while i < len(a):
        word = a[i].upper()
        if word == b"FORCE":
            force = True
        elif word == b"JUSTID":
            just_ids = True
        elif word in (b"IDLE", b"TIME", b"RETRYCOUNT", b"LASTID") and i + 1 < len(a):
            value = a[i + 1]
            i += 1
            if word == b"IDLE":
                at_ms = now - integer(value)
            elif word == b"TIME":
                at_ms = integer(value)
            elif word == b"RETRYCOUNT":
                retries = integer(value)
        else:
            raise RedisError(f"ERR Unrecognized XCLAIM option '{a[i].decode()}'")
        i += 1
    claimed: list[Reply] = []
    for id in ids:
        nack = group.pending.get(id)
        if nack is None:
            if not force or id not in stream.entries:
                continue
            nack = group.pending[id] = Nack(consumer, 0, 0)
        elif idle_min and now - nack.delivered_at_ms < idle_min:
            continue
        claimed.append(_claim(stream, group, id, nack, consumer, min(at_ms, now), retries, just_ids))
    return claimed


@command("XAUTOCLAIM", -6, deny_oom=True)
def xautoclaim(db: Database, a: list[bytes]) -> Reply:
    stream, group = find_group(db, a[0], a[1])
    consumer, idle_min = a[2], max(0, integer(a[3], "ERR Invalid min-idle-time argument for XAUTOCLAIM"))
    start, count, just_ids = bound(a[4], upper=False), 100, False
    for i, word in enumerate(a[5:], 5):
        if word.upper() == b"JUSTID":
            just_ids = True
        elif word.upper() == b"COUNT" and i + 1 < len(a):
            count = integer(a[i + 1])
    now = db.now_ms()
    claimed: list[Reply] = []
    left = count * 10
    for id in sorted(group.pending):
        if id < start:
            continue
        if left == 0 or count == 0:
            return [show_id(id), claimed]
        left -= 1
        nack = group.pending[id]
        if now - nack.delivered_at_ms >= idle_min:
            claimed.append(_claim(stream, group, id, nack, consumer, now, None, just_ids))
            count -= 1
    return [b"0-0", claimed]


def _claim(
    stream: Stream,
    group: Group,
    id: int,
    nack: Nack,
    consumer: bytes,
    at_ms: int,
    retries: int | None,
    just_ids: bool,
) -> Reply:
    group.consumers[consumer] = max(at_ms, group.consumers.get(consumer, 0))
    nack.consumer, nack.delivered_at_ms = consumer, at_ms
    if retries is not None:
        nack.count = retries
    elif not just_ids:
        nack.count += 1
    if just_ids:
        return show_id(id)
    return stream.told([id])[0] if id in stream.entries else None


@command("XGROUP", -3, deny_oom=True)
def xgroup(db: Database, a: list[bytes]) -> Reply:
    what = a[0].upper()
    words = {b"CREATE": (4, 5), b"SETID": (4,), b"DESTROY": (3,), b"CREATECONSUMER": (4,), b"DELCONSUMER": (4,)}
    if len(a) not in words.get(what, ()):
        text = a[0].decode()
        raise RedisError(f"ERR Unknown subcommand or wrong number of arguments for '{text}'. Try XGROUP HELP.")
    key, name = a[1], a[2]
    make = what == b"CREATE" and len(a) == 5 and a[4].upper() == b"MKSTREAM"
    stream = db.typed(key, Stream)
    if stream is None and not make:
        raise RedisError(NO_KEY_FOR_GROUP)
    if what == b"CREATE":
        id = 0 if a[3] == b"$" and stream is None else _position(stream, a[3])
        stream = stream if stream is not None else db.open(key, Stream)
        if name in stream.groups:
            raise RedisError("BUSYGROUP Consumer Group name already exists")
        stream.groups[name] = Group(id)
        return OK
    assert stream is not None
    if what == b"DESTROY":
        if stream.groups.pop(name, None) is None:
            return 0
        db.rung[key] = None
        return 1
    group = stream.groups.get(name)
    if group is None:
        raise RedisError(f"NOGROUP No such consumer group '{name.decode()}' for key name '{key.decode()}'")
    if what == b"SETID":
        group.last_id = _position(stream, a[3])
        return OK
    if what == b"CREATECONSUMER":
        created = a[3] not in group.consumers
        group.consumers.setdefault(a[3], db.now_ms())
        return int(created)
    mine = group.of(a[3])
    for id, _ in mine:
        del group.pending[id]
    group.consumers.pop(a[3], None)
    return len(mine)


def _position(stream: Stream | None, word: bytes) -> int:
    if word == b"$":
        return stream.last_id if stream is not None else 0
    return bound(word, upper=False) if word in (b"-", b"+") else parse_id(word)


@command("XINFO", -2)
def xinfo(db: Database, a: list[bytes]) -> Reply:
    what = a[0].upper()
    if (what, len(a)) not in ((b"STREAM", 2), (b"GROUPS", 2), (b"CONSUMERS", 3)):
        text = a[0].decode()
        raise RedisError(f"ERR Unknown subcommand or wrong number of arguments for '{text}'. Try XINFO HELP.")
    stream = db.typed(a[1], Stream)
    if stream is None:
        raise RedisError("ERR no such key")
    if what == b"STREAM":
        return _about_stream(stream)
    if what == b"GROUPS":
        return [_about_group(name, group) for name, group in sorted(stream.groups.items())]
    group = stream.groups.get(a[2])
    if group is None:
        raise RedisError(f"NOGROUP No such consumer group '{a[2].decode()}' for key name '{a[1].decode()}'")
    now = db.now_ms()
    held: dict[bytes, int] = {}
    for nack in group.pending.values():
        held[nack.consumer] = held.get(nack.consumer, 0) + 1
    return [
        [b"name", name, b"pending", held.get(name, 0), b"idle", max(0, now - seen_ms)]
        for name, seen_ms in sorted(group.consumers.items())
    ]


def _about_stream(stream: Stream) -> Reply:
    ends = [stream.told(ids)[0] if ids else None for ids in (stream.ids[:1], stream.ids[-1:])]
    return [
        *(b"length", len(stream.ids), b"radix-tree-keys", 1, b"radix-tree-nodes", 2),
        *(b"last-generated-id", show_id(stream.last_id), b"groups", len(stream.groups)),
        *(b"first-entry", ends[0], b"last-entry", ends[1]),
    ]


def _about_group(name: bytes, group: Group) -> Reply:
    facts: list[Reply] = [b"name", name, b"consumers", len(group.consumers), b"pending", len(group.pending)]
    return [*facts, b"last-delivered-id", show_id(group.last_id)]
