"""The model's commands on sorted sets."""

from simulation.redis_values import (
    SYNTAX,
    Database,
    RedisError,
    Reply,
    Zset,
    command,
    integer,
    number,
    shown,
    sliced,
)


@command("ZADD", -4, deny_oom=True)
def zadd(db: Database, a: list[bytes]) -> Reply:
    flags, i = set[bytes](), 1
    while i < len(a) and a[i].upper() in (b"NX", b"XX", b"CH", b"GT", b"LT", b"INCR"):
        flags.add(a[i].upper())
        i += 1
    pairs = a[i:]
    if not pairs or len(pairs) % 2:
        raise RedisError(SYNTAX)
    if b"NX" in flags and b"XX" in flags:
        raise RedisError("ERR XX and NX options at the same time are not compatible")
    if len(flags & {b"GT", b"LT", b"NX"}) > 1:
        raise RedisError("ERR GT, LT, and/or NX options at the same time are not compatible")
    if b"INCR" in flags and len(pairs) > 2:
        raise RedisError("ERR INCR option supports a single increment-element pair")
    scores = [number(word) for word in pairs[::2]]
    value = db.typed(a[0], Zset)
    if value is None:
        if b"XX" in flags:
            return None if b"INCR" in flags else 0
        value = db.open(a[0], Zset)
    added = changed = 0
    for score, member in zip(scores, pairs[1::2], strict=True):
        old = value.scores.get(member)
        if (old is None and b"XX" in flags) or (old is not None and b"NX" in flags):
            if b"INCR" in flags:
                return None
            continue
        new = score + (old or 0.0) if b"INCR" in flags else score
        if old is not None and ((b"GT" in flags and new <= old) or (b"LT" in flags and new >= old)):
            if b"INCR" in flags:
                return None
            continue
        if old is None:
            added += 1
        elif old != new:
            changed += 1
        value.add(member, new)
        if b"INCR" in flags:
            return shown(new)
    db.settle(a[0], value)
    return added + changed if b"CH" in flags else added


@command("ZINCRBY", 4, deny_oom=True)
def zincrby(db: Database, a: list[bytes]) -> Reply:
    return zadd(db, [a[0], b"INCR", a[1], a[2]])


@command("ZREM", -3, writes=True)
def zrem(db: Database, a: list[bytes]) -> Reply:
    value = db.typed(a[0], Zset)
    if value is None:
        return 0
    gone = sum(value.discard(member) for member in a[1:])
    db.settle(a[0], value)
    return gone


@command("ZCARD", 2)
def zcard(db: Database, a: list[bytes]) -> Reply:
    return len(db.typed(a[0], Zset) or ())


@command("ZSCORE", 3)
def zscore(db: Database, a: list[bytes]) -> Reply:
    value = db.typed(a[0], Zset)
    score = value.scores.get(a[1]) if value else None
    return None if score is None else shown(score)


@command("ZMSCORE", -3)
def zmscore(db: Database, a: list[bytes]) -> Reply:
    return [zscore(db, [a[0], member]) for member in a[1:]]


@command("ZRANK", 3)
def zrank(db: Database, a: list[bytes]) -> Reply:
    value = db.typed(a[0], Zset)
    if value is None or a[1] not in value.scores:
        return None
    return value.order.index((value.scores[a[1]], a[1]))


@command("ZCOUNT", 4)
def zcount(db: Database, a: list[bytes]) -> Reply:
    low, high = _bound(a[1]), _bound(a[2])
    value = db.typed(a[0], Zset)
    return len(value.between(low, high)) if value else 0


@command("ZRANGE", -4)
def zrange(db: Database, a: list[bytes]) -> Reply:
    words = [word.upper() for word in a[3:]]
    if b"BYSCORE" in words:
        return _by_score(db, a[0], a[1], a[2], [w for w in a[3:] if w.upper() != b"BYSCORE"])
    reverse = b"REV" in words
    if unknown := [w for w in words if w not in (b"WITHSCORES", b"REV")]:
        raise RedisError(SYNTAX if unknown else "")
    start, stop = integer(a[1]), integer(a[2])
    value = db.typed(a[0], Zset)
    if value is None:
        return []
    order = value.order[::-1] if reverse else value.order
    return _told(order[sliced(len(order), start, stop)], with_scores=b"WITHSCORES" in words)


@command("ZREVRANGE", -4)
def zrevrange(db: Database, a: list[bytes]) -> Reply:
    return zrange(db, [*a, b"REV"])


@command("ZRANGEBYSCORE", -4)
def zrangebyscore(db: Database, a: list[bytes]) -> Reply:
    return _by_score(db, a[0], a[1], a[2], a[3:])


def _by_score(db: Database, key: bytes, low: bytes, high: bytes, options: list[bytes]) -> Reply:
    offset, limit, with_scores = 0, -1, False
    i = 0
    while i < len(options):
        word = options[i].upper()
        if word == b"WITHSCORES":
            with_scores = True
        elif word == b"LIMIT" and i + 2 < len(options):
            offset, limit = integer(options[i + 1]), integer(options[i + 2])
            i += 2
        else:
            raise RedisError(SYNTAX)
        i += 1
    bounds = _bound(low), _bound(high)
    value = db.typed(key, Zset)
    if value is None or offset < 0:
        return []
    found = value.between(*bounds)[offset:]
    return _told(found if limit < 0 else found[:limit], with_scores=with_scores)


def _told(entries: list[tuple[float, bytes]], *, with_scores: bool) -> list[bytes]:
    if not with_scores:
        return [member for _, member in entries]
    return [part for score, member in entries for part in (member, shown(score))]


@command("ZPOPMIN", -2, writes=True)
def zpopmin(db: Database, a: list[bytes]) -> Reply:
    count = integer(a[1]) if len(a) > 1 else 1
    if count <= 0:
        return []
    value = db.typed(a[0], Zset)
    if value is None:
        return []
    taken = value.order[:count]
    for _, member in taken:
        value.discard(member)
    db.settle(a[0], value)
    return _told(taken, with_scores=True)


@command("ZREMRANGEBYSCORE", 4, writes=True)
def zremrangebyscore(db: Database, a: list[bytes]) -> Reply:
    low, high = _bound(a[1]), _bound(a[2])
    value = db.typed(a[0], Zset)
    if value is None:
        return 0
    gone = value.between(low, high)
    for _, member in gone:
        value.discard(member)
    db.settle(a[0], value)
    return len(gone)


@command("ZREMRANGEBYRANK", 4, writes=True)
def zremrangebyrank(db: Database, a: list[bytes]) -> Reply:
    start, stop = integer(a[1]), integer(a[2])
    value = db.typed(a[0], Zset)
    if value is None:
        return 0
    gone = value.order[sliced(len(value), start, stop)]
    for _, member in gone:
        value.discard(member)
    db.settle(a[0], value)
    return len(gone)


def _bound(word: bytes) -> tuple[float, bool]:
    excluded = word[:1] == b"("
    return number(word[1:] if excluded else word, "ERR min or max is not a float"), excluded
