"""The model's commands on keys, strings and hashes."""

import re

from simulation.redis_values import (
    OK,
    SYNTAX,
    WRONGTYPE,
    Database,
    Hash,
    List,
    Members,
    RedisError,
    Reply,
    Status,
    Zset,
    command,
    integer,
)

_KINDS = {bytes: b"string", Hash: b"hash", List: b"list", Members: b"set", Zset: b"zset"}

# -- keys --------------------------------------------------------------------------------------------------------------


@command("DEL", -2, writes=True)
@command("UNLINK", -2, writes=True)
def delete(db: Database, a: list[bytes]) -> Reply:
    return sum(db.get(key) is not None and db.delete(key) for key in a)


@command("EXISTS", -2)
def exists(db: Database, a: list[bytes]) -> Reply:
    return sum(db.get(key) is not None for key in a)


@command("TYPE", 2)
def kind_of(db: Database, a: list[bytes]) -> Reply:
    value = db.get(a[0])
    return Status(b"none" if value is None else _KINDS.get(type(value), b"stream"))


@command("PEXPIRE", 3, writes=True)
def pexpire(db: Database, a: list[bytes]) -> Reply:
    return _expire(db, a[0], db.now_ms() + integer(a[1]))


@command("EXPIRE", 3, writes=True)
def expire(db: Database, a: list[bytes]) -> Reply:
    return _expire(db, a[0], db.now_ms() + 1000 * integer(a[1]))


@command("PEXPIREAT", 3, writes=True)
def pexpireat(db: Database, a: list[bytes]) -> Reply:
    return _expire(db, a[0], integer(a[1]))


def _expire(db: Database, key: bytes, until_ms: int) -> int:
    if db.get(key) is None:
        return 0
    if until_ms <= db.now_ms():
        db.delete(key)
    else:
        db.expires_ms[key] = until_ms
    return 1


@command("PTTL", 2)
def pttl(db: Database, a: list[bytes]) -> Reply:
    if db.get(a[0]) is None:
        return -2
    until = db.expires_ms.get(a[0])
    return -1 if until is None else max(0, until - db.now_ms())


@command("TTL", 2)
def ttl(db: Database, a: list[bytes]) -> Reply:
    left = pttl(db, a)
    return left if left < 0 else (left + 500) // 1000


@command("PERSIST", 2, writes=True)
def persist(db: Database, a: list[bytes]) -> Reply:
    return int(db.get(a[0]) is not None and db.expires_ms.pop(a[0], None) is not None)


@command("RENAME", 3, writes=True)
def rename(db: Database, a: list[bytes]) -> Reply:
    value = db.get(a[0])
    if value is None:
        raise RedisError("ERR no such key")
    until = db.expires_ms.get(a[0])
    db.delete(a[0])
    db.delete(a[1])
    db.values[a[1]] = value
    if until is not None:
        db.expires_ms[a[1]] = until
    return OK


@command("KEYS", 2)
def keys(db: Database, a: list[bytes]) -> Reply:
    return sorted(key for key in db.living() if _glob(a[0]).fullmatch(key))


@command("SCAN", -2)
def scan(db: Database, a: list[bytes]) -> Reply:
    """All keys at once: a COUNT is only a hint."""
    integer(a[0], "ERR invalid cursor")
    pattern, kind = b"*", b""
    for word, value in zip(a[1::2], a[2::2], strict=True):
        if word.upper() == b"MATCH":
            pattern = value
        elif word.upper() == b"TYPE":
            kind = value.lower()
        elif word.upper() != b"COUNT":
            raise RedisError(SYNTAX)
    found = keys(db, [pattern])
    return [b"0", [key for key in found if not kind or kind_of(db, [key]) == kind]]


def _glob(pattern: bytes) -> re.Pattern[bytes]:
    out = b""
    for i in range(len(pattern)):
        c = pattern[i : i + 1]
        out += b".*" if c == b"*" else b"." if c == b"?" else re.escape(c)
    return re.compile(out, re.DOTALL)


@command("DBSIZE", 1)
def dbsize(db: Database, _: list[bytes]) -> Reply:
    return len(db.living())


@command("FLUSHALL", -1, writes=True)
@command("FLUSHDB", -1, writes=True)
def flushall(db: Database, _: list[bytes]) -> Reply:
    db.clear()
    return OK


# -- strings -----------------------------------------------------------------------------------------------------------


@command("GET", 2)
def get(db: Database, a: list[bytes]) -> Reply:
    return db.typed(a[0], bytes)


@command("SET", -3, deny_oom=True)
def set_(db: Database, a: list[bytes]) -> Reply:
    key, value = a[0], a[1]
    ttl_ms: int | None = None
    has_ttl, ttl_word, ttl_unit, keep, only, give = False, b"", 1, False, b"", False
    i = 2
    while i < len(a):
        word = a[i].upper()
        if word in (b"NX", b"XX"):
            if only and only != word:
                raise RedisError(SYNTAX)
            only = word
        elif word == b"KEEPTTL":
            keep = True
        elif word == b"GET":
            give = True
        elif word in (b"PX", b"EX") and i + 1 < len(a):
            unit = 1 if word == b"PX" else 1000
            if has_ttl and unit != ttl_unit:
                raise RedisError(SYNTAX)
            has_ttl, ttl_word, ttl_unit = True, a[i + 1], unit
            i += 1
        else:
            raise RedisError(SYNTAX)
        i += 1
    if (keep and has_ttl) or (give and only == b"NX"):
        raise RedisError(SYNTAX)
    if has_ttl:
        ttl_ms = integer(ttl_word) * ttl_unit
        if ttl_ms <= 0:
            raise RedisError("ERR invalid expire time in set")
    old = db.get(key)
    if give and old is not None and type(old) is not bytes:
        raise RedisError(WRONGTYPE)
    if (only == b"NX" and old is not None) or (only == b"XX" and old is None):
        return old if give else None
    db.values[key] = value
    if ttl_ms is not None:
        db.expires_ms[key] = db.now_ms() + ttl_ms
    elif not keep:
        db.expires_ms.pop(key, None)
    return old if give else OK


@command("SETNX", 3, deny_oom=True)
def setnx(db: Database, a: list[bytes]) -> Reply:
    return 0 if set_(db, [*a, b"NX"]) is None else 1


@command("PSETEX", 4, deny_oom=True)
def psetex(db: Database, a: list[bytes]) -> Reply:
    return set_(db, [a[0], a[2], b"PX", a[1]])


@command("GETDEL", 2, writes=True)
def getdel(db: Database, a: list[bytes]) -> Reply:
    value = db.typed(a[0], bytes)
    db.delete(a[0])
    return value


@command("MGET", -2)
def mget(db: Database, a: list[bytes]) -> Reply:
    values = [db.get(key) for key in a]
    return [value if type(value) is bytes else None for value in values]


@command("STRLEN", 2)
def strlen(db: Database, a: list[bytes]) -> Reply:
    return len(db.typed(a[0], bytes) or b"")


@command("INCRBY", 3, deny_oom=True)
def incrby(db: Database, a: list[bytes]) -> Reply:
    by = integer(a[1])
    held = db.typed(a[0], bytes)
    value = integer(b"0" if held is None else held) + by
    db.values[a[0]] = b"%d" % value
    return value


@command("INCR", 2, deny_oom=True)
def incr(db: Database, a: list[bytes]) -> Reply:
    return incrby(db, [a[0], b"1"])


@command("DECR", 2, deny_oom=True)
def decr(db: Database, a: list[bytes]) -> Reply:
    return incrby(db, [a[0], b"-1"])


# -- hashes ------------------------------------------------------------------------------------------------------------


@command("HGET", 3)
def hget(db: Database, a: list[bytes]) -> Reply:
    value = db.typed(a[0], Hash)
    return value.get(a[1]) if value is not None else None


@command("HMGET", -3)
def hmget(db: Database, a: list[bytes]) -> Reply:
    value = db.typed(a[0], Hash)
    if value is None:
        return [None] * (len(a) - 1)
    return [value.get(name) for name in a[1:]]


@command("HGETALL", 2)
def hgetall(db: Database, a: list[bytes]) -> Reply:
    return [part for pair in (db.typed(a[0], Hash) or {}).items() for part in pair]


@command("HKEYS", 2)
def hkeys(db: Database, a: list[bytes]) -> Reply:
    return list(db.typed(a[0], Hash) or {})


@command("HVALS", 2)
def hvals(db: Database, a: list[bytes]) -> Reply:
    return list((db.typed(a[0], Hash) or {}).values())


@command("HLEN", 2)
def hlen(db: Database, a: list[bytes]) -> Reply:
    return len(db.typed(a[0], Hash) or {})


@command("HEXISTS", 3)
def hexists(db: Database, a: list[bytes]) -> Reply:
    return int(a[1] in (db.typed(a[0], Hash) or {}))


@command("HSET", -4, deny_oom=True)
def hset(db: Database, a: list[bytes]) -> Reply:
    if len(a) % 2 == 0:
        raise RedisError("ERR wrong number of arguments for 'hset' command")
    value = db.open(a[0], Hash)
    before = len(value)
    value.update(zip(a[1::2], a[2::2], strict=True))
    return len(value) - before


@command("HMSET", -4, deny_oom=True)
def hmset(db: Database, a: list[bytes]) -> Reply:
    hset(db, a)
    return OK


@command("HSETNX", 4, deny_oom=True)
def hsetnx(db: Database, a: list[bytes]) -> Reply:
    value = db.open(a[0], Hash)
    if a[1] in value:
        return 0
    value[a[1]] = a[2]
    return 1


@command("HDEL", -3, writes=True)
def hdel(db: Database, a: list[bytes]) -> Reply:
    value = db.typed(a[0], Hash)
    if value is None:
        return 0
    gone = sum(value.pop(name, None) is not None for name in a[1:])
    db.settle(a[0], value)
    return gone


@command("HINCRBY", 4, deny_oom=True)
def hincrby(db: Database, a: list[bytes]) -> Reply:
    by = integer(a[2])
    held = (db.typed(a[0], Hash) or Hash()).get(a[1], b"0")
    total = integer(held, "ERR hash value is not an integer") + by
    db.open(a[0], Hash)[a[1]] = b"%d" % total
    return total
