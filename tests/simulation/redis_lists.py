"""The model's commands on lists and sets."""

from simulation.redis_values import (
    OK,
    SYNTAX,
    Database,
    List,
    Members,
    RedisError,
    Reply,
    command,
    integer,
    sliced,
)

# -- lists -------------------------------------------------------------------------------------------------------------


@command("RPUSH", -3, deny_oom=True)
def rpush(db: Database, a: list[bytes]) -> Reply:
    value = db.open(a[0], List)
    value.extend(a[1:])
    return len(value)


@command("LPUSH", -3, deny_oom=True)
def lpush(db: Database, a: list[bytes]) -> Reply:
    value = db.open(a[0], List)
    value[:0] = a[:0:-1]
    return len(value)


@command("LPOP", -2, writes=True)
def lpop(db: Database, a: list[bytes]) -> Reply:
    return _pop(db, a, front=True)


@command("RPOP", -2, writes=True)
def rpop(db: Database, a: list[bytes]) -> Reply:
    return _pop(db, a, front=False)


def _pop(db: Database, a: list[bytes], *, front: bool) -> Reply:
    count = None
    if len(a) > 1:
        count = integer(a[1], "ERR value is out of range, must be positive")
        if count < 0:
            raise RedisError("ERR value is out of range, must be positive")
    value = db.typed(a[0], List)
    if value is None or count == 0:  # 6.2 answers nil for none; newer servers an empty array for an existing list
        return None
    taken = [value.pop(0 if front else -1) for _ in range(min(1 if count is None else count, len(value)))]
    db.settle(a[0], value)
    return taken[0] if count is None else taken


@command("LLEN", 2)
def llen(db: Database, a: list[bytes]) -> Reply:
    return len(db.typed(a[0], List) or [])


@command("LINDEX", 3)
def lindex(db: Database, a: list[bytes]) -> Reply:
    value = db.typed(a[0], List)
    if value is None:
        return None
    i = integer(a[1])
    return value[i] if -len(value) <= i < len(value) else None


@command("LRANGE", 4)
def lrange(db: Database, a: list[bytes]) -> Reply:
    start, stop = integer(a[1]), integer(a[2])
    value = db.typed(a[0], List) or List()
    return list(value[sliced(len(value), start, stop)])


@command("LTRIM", 4, writes=True)
def ltrim(db: Database, a: list[bytes]) -> Reply:
    start, stop = integer(a[1]), integer(a[2])
    value = db.typed(a[0], List)
    if value is not None:
        value[:] = value[sliced(len(value), start, stop)]
        db.settle(a[0], value)
    return OK


@command("LREM", 4, writes=True)
def lrem(db: Database, a: list[bytes]) -> Reply:
    count = integer(a[1])
    value = db.typed(a[0], List)
    if value is None:
        return 0
    found = [i for i, item in enumerate(value) if item == a[2]]
    if count:
        found = found[:count] if count > 0 else found[count:]
    for i in reversed(found):
        del value[i]
    db.settle(a[0], value)
    return len(found)


@command("LPOS", 3)
def lpos(db: Database, a: list[bytes]) -> Reply:
    value = db.typed(a[0], List) or List()
    return value.index(a[1]) if a[1] in value else None


@command("LMOVE", 5, deny_oom=True)
def lmove(db: Database, a: list[bytes]) -> Reply:
    ends = [word.upper() for word in a[2:4]]
    if any(end not in (b"LEFT", b"RIGHT") for end in ends):
        raise RedisError(SYNTAX)
    if db.typed(a[0], List) is not None:
        db.typed(a[1], List)
    item = _pop(db, a[:1], front=ends[0] == b"LEFT")
    if item is not None:
        (lpush if ends[1] == b"LEFT" else rpush)(db, [a[1], item])
    return item


# -- sets --------------------------------------------------------------------------------------------------------------


@command("SADD", -3, deny_oom=True)
def sadd(db: Database, a: list[bytes]) -> Reply:
    value = db.open(a[0], Members)
    before = len(value)
    value.update(dict.fromkeys(a[1:]))
    return len(value) - before


@command("SREM", -3, writes=True)
def srem(db: Database, a: list[bytes]) -> Reply:
    value = db.typed(a[0], Members)
    if value is None:
        return 0
    gone = 0
    for member in a[1:]:
        if member in value:
            del value[member]
            gone += 1
    db.settle(a[0], value)
    return gone


@command("SMEMBERS", 2)
def smembers(db: Database, a: list[bytes]) -> Reply:
    return list(db.typed(a[0], Members) or ())


@command("SISMEMBER", 3)
def sismember(db: Database, a: list[bytes]) -> Reply:
    return int(a[1] in (db.typed(a[0], Members) or ()))


@command("SCARD", 2)
def scard(db: Database, a: list[bytes]) -> Reply:
    return len(db.typed(a[0], Members) or ())
