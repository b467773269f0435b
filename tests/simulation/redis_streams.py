"""The model's streams, and the commands on them that need no consumer group. An entry id is one integer here."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from simulation.redis_values import (
    SYNTAX,
    Database,
    RedisError,
    Reply,
    command,
    integer,
)

INVALID_ID = "ERR Invalid stream ID specified as stream command argument"
SEQUENCE_MAX = (1 << 64) - 1
ID_MAX = (1 << 128) - 1
NODE_ENTRIES = 100
"""An approximate trim keeps whole nodes, of this many entries."""


@dataclass(slots=True)
class Nack:
    """An entry that was delivered to a consumer and not acknowledged."""

    consumer: bytes
    delivered_at_ms: int
    count: int


@dataclass(slots=True)
class Group:
    """A consumer group: what was delivered last, to whom what is pending, and who was seen when."""

    last_id: int
    pending: dict[int, Nack] = field(default_factory=dict)
    consumers: dict[bytes, int] = field(default_factory=dict)

    def of(self, consumer: bytes) -> list[tuple[int, Nack]]:
        """What is pending for a consumer, oldest first."""
        return sorted((i, n) for i, n in self.pending.items() if n.consumer == consumer)


class Stream:
    """Entries by id, oldest first, and the groups that read them. Stays when it is empty."""

    __slots__ = ("entries", "groups", "ids", "last_id")

    def __init__(self) -> None:
        self.entries: dict[int, list[bytes]] = {}
        self.ids: list[int] = []
        self.last_id = 0
        self.groups: dict[bytes, Group] = {}

    def add(self, id: int, fields: list[bytes]) -> None:
        """Append an entry."""
        self.entries[id] = fields
        self.ids.append(id)
        self.last_id = id

    def drop(self, id: int) -> bool:
        """Delete an entry. False when it was not there."""
        if self.entries.pop(id, None) is None:
            return False
        del self.ids[bisect_left(self.ids, id)]
        return True

    def between(self, first: int, last: int, count: int = -1) -> list[int]:
        """Ids of entries, both ends included."""
        begin, end = bisect_left(self.ids, first), bisect_right(self.ids, last)
        return self.ids[begin : end if count < 0 else min(end, begin + count)]

    def told(self, ids: list[int]) -> list[Reply]:
        """Entries as a reply; one that was deleted has no fields."""
        entries = self.entries
        return [[show_id(i), list(entries[i]) if i in entries else None] for i in ids]


def show_id(id: int) -> bytes:
    """An entry id as Redis shows it."""
    return b"%d-%d" % (id >> 64, id & SEQUENCE_MAX)


def parse_id(word: bytes, sequence: int = 0) -> int:
    """An entry id, `sequence` completing one that is milliseconds only. Raises RedisError."""
    ms, dash, rest = word.partition(b"-")
    if not ms.isdigit() or (dash and not rest.isdigit()):
        raise RedisError(INVALID_ID)
    found_ms, found_sequence = int(ms), int(rest) if dash else sequence
    if found_ms > SEQUENCE_MAX or found_sequence > SEQUENCE_MAX:
        raise RedisError(INVALID_ID)
    return found_ms << 64 | found_sequence


def bound(word: bytes, *, upper: bool) -> int:
    """An end of a range: `-`, `+`, an id, or an excluded one in `(`. Raises RedisError."""
    if word == b"-":
        return 0
    if word == b"+":
        return ID_MAX
    if word[:1] == b"(":
        id = parse_id(word[1:], SEQUENCE_MAX if upper else 0)
        if id == (0 if upper else ID_MAX):
            raise RedisError(f"ERR invalid {'end' if upper else 'start'} ID for the interval")
        return id - 1 if upper else id + 1
    return parse_id(word, SEQUENCE_MAX if upper else 0)


@command("XADD", -5, deny_oom=True)
def xadd(db: Database, a: list[bytes]) -> Reply:
    key, i, trim, make = a[0], 1, None, True
    while i < len(a):
        word = a[i].upper()
        if word == b"NOMKSTREAM":
            make = False
            i += 1
        elif word in (b"MAXLEN", b"MINID"):
            trim, i = _trim_options(a, i)
        else:
            break
    if i >= len(a) or len(a) - i < 3 or (len(a) - i) % 2 == 0:
        raise RedisError("ERR wrong number of arguments for XADD")
    wanted, fields = a[i], a[i + 1 :]
    id = None if wanted == b"*" else parse_id(wanted)
    if id == 0:
        raise RedisError("ERR The ID specified in XADD must be greater than 0-0")
    stream = db.typed(key, Stream)
    if stream is None:
        if not make:
            return None
        stream = db.open(key, Stream)
    if id is None:
        id = max(db.now_ms() << 64, stream.last_id + 1)
    elif id <= stream.last_id:
        raise RedisError("ERR The ID specified in XADD is equal or smaller than the target stream top item")
    stream.add(id, fields)
    if trim is not None:
        _trim(stream, *trim)
    db.rung[key] = None
    return show_id(id)


def _trim_options(a: list[bytes], i: int) -> tuple[tuple[bytes, int, bool], int]:
    """Read `MAXLEN|MINID [=|~] N [LIMIT N]` at `i`. Returns (what, how much, approximately) and where it ends."""
    what, i = a[i].upper(), i + 1
    approximately = i < len(a) and a[i] == b"~"
    if i < len(a) and a[i] in (b"~", b"="):
        i += 1
    if i >= len(a):
        raise RedisError(SYNTAX)
    limit = integer(a[i]) if what == b"MAXLEN" else parse_id(a[i])
    if limit < 0:
        raise RedisError("ERR The MAXLEN argument must be >= 0.")
    i += 1
    if i + 1 < len(a) and a[i].upper() == b"LIMIT":
        if not approximately:
            raise RedisError("ERR syntax error, LIMIT cannot be used without the special ~ option")
        i += 2
    return (what, limit, approximately), i


def _trim(stream: Stream, what: bytes, limit: int, approximately: bool) -> int:
    count = max(0, len(stream.ids) - limit) if what == b"MAXLEN" else bisect_left(stream.ids, limit)
    if approximately:
        count -= count % NODE_ENTRIES
    for id in stream.ids[:count]:
        del stream.entries[id]
    del stream.ids[:count]
    return count


@command("XTRIM", -4, writes=True)
def xtrim(db: Database, a: list[bytes]) -> Reply:
    if a[1].upper() not in (b"MAXLEN", b"MINID"):
        raise RedisError(SYNTAX)
    trim, end = _trim_options(a, 1)
    if end != len(a):
        raise RedisError(SYNTAX)
    stream = db.typed(a[0], Stream)
    return _trim(stream, *trim) if stream is not None else 0


@command("XLEN", 2)
def xlen(db: Database, a: list[bytes]) -> Reply:
    stream = db.typed(a[0], Stream)
    return len(stream.ids) if stream is not None else 0


@command("XRANGE", -4)
def xrange(db: Database, a: list[bytes]) -> Reply:
    return _range(db, a[0], a[1], a[2], a[3:], reverse=False)


@command("XREVRANGE", -4)
def xrevrange(db: Database, a: list[bytes]) -> Reply:
    return _range(db, a[0], a[2], a[1], a[3:], reverse=True)


def _range(db: Database, key: bytes, low: bytes, high: bytes, options: list[bytes], *, reverse: bool) -> Reply:
    first, last, count = bound(low, upper=False), bound(high, upper=True), -1
    if options:
        if len(options) != 2 or options[0].upper() != b"COUNT":
            raise RedisError(SYNTAX)
        count = max(0, integer(options[1]))
    stream = db.typed(key, Stream)
    if stream is None:
        return []
    if count == 0:
        return None
    ids = stream.between(first, last, -1 if reverse else count)
    if reverse:
        ids = ids[::-1][: count if count > 0 else None]
    return stream.told(ids)


@command("XDEL", -3, writes=True)
def xdel(db: Database, a: list[bytes]) -> Reply:
    stream = db.typed(a[0], Stream)
    if stream is None:
        return 0
    ids = [parse_id(word) for word in a[1:]]
    return sum(stream.drop(id) for id in ids)


@command("XSETID", 3, deny_oom=True)
def xsetid(db: Database, a: list[bytes]) -> Reply:
    stream = db.typed(a[0], Stream)
    if stream is None:
        raise RedisError("ERR no such key")
    stream.last_id = parse_id(a[1])
    return b"OK"
