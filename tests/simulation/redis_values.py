"""What the model of Redis holds: keys with a time to live, values of each type, and how replies and errors look."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

Reply = Any
"""bytes (bulk), int, None (nil), list (array), Status; an error is raised."""


class RedisError(Exception):
    """An error reply; its text begins with the code."""


class Status(bytes):
    """A status reply, such as OK."""


OK = Status(b"OK")
SYNTAX = "ERR syntax error"
WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
NOT_AN_INTEGER = "ERR value is not an integer or out of range"


class Hash(dict[bytes, bytes]):
    """Fields and values, in order of arrival."""


class List(list[bytes]):
    """A list."""


class Members(dict[bytes, None]):
    """A set, in order of arrival: Redis' own order is nobody's business."""


class Zset:
    """A sorted set: members by score, and among equals by name."""

    __slots__ = ("order", "scores")

    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}
        self.order: list[tuple[float, bytes]] = []

    def __len__(self) -> int:
        return len(self.order)

    def add(self, member: bytes, score: float) -> None:
        """Enter a member, or move it."""
        self.discard(member)
        self.scores[member] = score
        insort(self.order, (score, member))

    def discard(self, member: bytes) -> bool:
        """Take a member out. False when it was not there."""
        score = self.scores.pop(member, None)
        if score is None:
            return False
        del self.order[bisect_left(self.order, (score, member))]
        return True

    def between(self, low: tuple[float, bool], high: tuple[float, bool]) -> list[tuple[float, bytes]]:
        """Members by score; a bound is (score, it is excluded)."""
        first, last = low[0], high[0]
        score = _score
        begin = (bisect_right if low[1] else bisect_left)(self.order, first, key=score)
        end = (bisect_left if high[1] else bisect_right)(self.order, last, key=score)
        return self.order[begin:end]


def _score(entry: tuple[float, bytes]) -> float:
    return entry[0]


T = TypeVar("T")


class Database:
    """Keys and their values. `now_us` is the server's clock."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self.now_us = now_us
        self.values: dict[bytes, Any] = {}
        self.expires_ms: dict[bytes, int] = {}
        self.rung: dict[bytes, None] = {}
        """Streams that got an entry, or lost their group, since somebody last looked."""
        self.out_of_memory = False

    def now_ms(self) -> int:
        """The server's clock in milliseconds."""
        return self.now_us() // 1000

    def get(self, key: bytes) -> Any:
        """The value, whatever its type; None when the key is not there or its time is over."""
        until = self.expires_ms.get(key)
        if until is not None and self.now_us() // 1000 > until:
            self.delete(key)
        return self.values.get(key)

    def typed(self, key: bytes, kind: type[T]) -> T | None:
        """The value if it is of that type. Raises WRONGTYPE."""
        value = self.get(key)
        if value is not None and type(value) is not kind:
            raise RedisError(WRONGTYPE)
        return value

    def open(self, key: bytes, kind: type[T]) -> T:
        """The value, made empty if there is none."""
        value = self.typed(key, kind)
        if value is None:
            value = self.values[key] = kind()
        return value

    def delete(self, key: bytes) -> bool:
        """Forget a key. False when it was not there."""
        self.expires_ms.pop(key, None)
        return self.values.pop(key, None) is not None

    def settle(self, key: bytes, value: Any) -> None:
        """Forget a collection that has become empty."""
        if not len(value):
            self.delete(key)

    def living(self) -> list[bytes]:
        """Every key whose time is not over."""
        return [key for key in list(self.values) if self.get(key) is not None]

    def clear(self) -> None:
        """Forget everything."""
        self.values.clear()
        self.expires_ms.clear()


Handler = Callable[[Database, list[bytes]], Reply]


@dataclass(frozen=True, slots=True)
class Command:
    """A command: how to run it, how many words it has (negative: at least), what it does to the data."""

    run: Handler
    arity: int
    writes: bool
    deny_oom: bool


COMMANDS: dict[bytes, Command] = {}
"""Every command that needs nothing but the data."""


def command(name: str, arity: int, *, writes: bool = False, deny_oom: bool = False) -> Callable[[Handler], Handler]:
    """Enter a function as a command. It gets the words behind the name; `arity` counts the name, as Redis does."""

    def enter(run: Handler) -> Handler:
        COMMANDS[name.encode()] = Command(run, arity, writes or deny_oom, deny_oom)
        return run

    return enter


def integer(word: bytes, error: str = NOT_AN_INTEGER) -> int:
    """A word as an integer, spelled as Redis wants it. Raises RedisError."""
    try:
        value = int(word)
    except ValueError:
        raise RedisError(error) from None
    if b"%d" % value != word or not -(1 << 63) <= value < 1 << 63:
        raise RedisError(error)
    return value


def number(word: bytes, error: str = "ERR value is not a valid float") -> float:
    """A word as a float. Raises RedisError."""
    try:
        value = float(word)
    except ValueError:
        raise RedisError(error) from None
    if value != value or word.strip() != word or b"_" in word:
        raise RedisError(error)
    return value


def shown(score: float) -> bytes:
    """A float as Redis shows it."""
    if score in (float("inf"), float("-inf")):
        return b"inf" if score > 0 else b"-inf"
    return b"%.17g" % score


def sliced(length: int, start: int, stop: int) -> slice:
    """The slice of an inclusive range whose ends may count from the back."""
    start = max(0, start + length if start < 0 else start)
    stop = stop + length if stop < 0 else stop
    return slice(start, max(start, stop + 1))
