"""The model answers as a real server does: the same commands to both, and the same replies from both."""

import re
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import hiredis
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from simulation.contract_commands import PLAIN_COMMANDS, STREAM_COMMANDS, Words
from simulation.direct import DirectConnection
from simulation.redis_model import RedisModel

from shared import clock
from shared.broker.connection import ReplyError
from shared.broker.embedded import EmbeddedRedis

THOROUGH = settings(
    max_examples=300,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
_ENTRY_ID = re.compile(rb"\d{13}-\d+")
_WHERE = re.compile(r"(@user_script: ?\d+: )+-?")
"""Where in the script: a call in the last statement has no line in the model."""
_WHERE_BYTES = re.compile(rb"@user_script: \d+: ")
_UNORDERED = {"KEYS", "SMEMBERS"}


class Both:
    """A real server and the model."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._reader = hiredis.Reader(replyError=ReplyError)
        self.model = DirectConnection(RedisModel(clock.wall_us))

    def close(self) -> None:
        self._socket.close()

    def clear(self) -> None:
        """Both are empty."""
        self.really(("FLUSHALL",), ("CONFIG", "SET", "maxmemory", "0"))
        self.model = DirectConnection(RedisModel(clock.wall_us))

    def really(self, *commands: Sequence[str | bytes]) -> list[Any]:
        """The real server's replies."""
        for words in commands:
            self._socket.sendall(hiredis.pack_command(tuple(words)))  # type: ignore[arg-type]  # any length
        replies: list[Any] = []
        while len(replies) < len(commands):
            while (reply := self._reader.gets()) is False:
                self._reader.feed(self._socket.recv(1 << 16))
            replies.append(reply)
        return replies

    def compare(self, *commands: Sequence[str | bytes]) -> None:
        """Give the commands to both; the replies must be equal."""
        real = self.really(*commands)
        modelled = [self.model.now(*words) for words in commands]
        for i, words in enumerate(commands):
            expected = _comparable(words, real[i])
            assert _comparable(words, modelled[i]) == expected, f"{words}, after {commands[:i]}"


def _comparable(words: Sequence[str | bytes], reply: Any) -> Any:
    """A reply without what differs from run to run: entry ids and times."""
    name = words[0]
    if name in _UNORDERED and isinstance(reply, list):
        return sorted(reply)
    if name in ("PTTL", "TTL") and isinstance(reply, int) and reply > 0:
        return "some time"
    if name == "XPENDING" and "-" in words and isinstance(reply, list):
        reply = [[id, consumer, "idle", count] for id, consumer, _, count in reply]
    if tuple(words[:2]) == ("XINFO", "CONSUMERS") and isinstance(reply, list):
        reply = [flat[:4] for flat in reply]  # newer servers tell more
    if tuple(words[:2]) == ("XINFO", "GROUPS") and isinstance(reply, list):
        reply = [flat[:8] for flat in reply]
    return _without_ids(reply)


def _without_ids(reply: Any) -> Any:
    if isinstance(reply, bytes):
        return _WHERE_BYTES.sub(b"a line: ", _ENTRY_ID.sub(b"an entry", reply))
    if isinstance(reply, list):
        return [_without_ids(item) for item in reply]
    return _WHERE.sub("", str(reply)).strip() if isinstance(reply, ReplyError) else reply


@pytest.fixture
def both(oldest_server: EmbeddedRedis) -> Iterator[Both]:
    """A real server and the model, both empty."""
    both = Both(str(oldest_server.socket))
    both.clear()
    yield both
    both.clear()
    both.close()


@THOROUGH
@given(commands=st.lists(PLAIN_COMMANDS, min_size=1, max_size=25))
def test_strings_hashes_lists_and_sets(both: Both, commands: list[Words]) -> None:
    """Plain types, keys of the wrong type included."""
    both.clear()
    both.compare(*commands)


@THOROUGH
@given(commands=st.lists(STREAM_COMMANDS, min_size=1, max_size=25))
def test_streams_and_groups(both: Both, commands: list[Words]) -> None:
    """Streams and consumer groups: what is delivered, pending, claimed, deleted."""
    both.clear()
    both.compare(("XGROUP", "CREATE", "s1", "g1", "0", "MKSTREAM"), *commands)


@pytest.mark.parametrize(
    "script",
    [
        "return {1, 'a', 3.9, -3.9, true, false, {}, {1, nil, 3}, {ok = 'FINE'}, {a = 1}}",
        "return {redis.call('GET', 'absent'), 1}",
        "return redis.call('GET', 'absent')",
        "return redis.call('SET', 'k1', 1.5) ",
        "redis.call('SET', 'k1', 1700000000000001) return redis.call('GET', 'k1')",
        "redis.call('SET', 'k1', 1e20) return redis.call('GET', 'k1')",
        "redis.call('SET', 'k1', 0.1) return redis.call('GET', 'k1')",
        "return redis.call('MGET', 'k1', 'k2', 'absent')",
        "return redis.error_reply('MINE is this')",
        "return redis.status_reply('FINE')",
        "return redis.pcall('HGET', 'k1')",
        "local r = redis.pcall('HGET', 'k1', 'f') return type(r) == 'table' and r.err or 'no error'",
        "local r = redis.pcall('NONSENSE') return r.err",
        "\n\nlocal r = redis.call('XREADGROUP', 'GROUP', 'g', 'c', 'STREAMS', 's', '>') return r",
        "local r = redis.pcall('XREADGROUP', 'GROUP', 'g', 'c', 'STREAMS', 's', '>') return r.err",
        "local r = redis.pcall('XINFO', 'CONSUMERS', 's', 'g') return r.err",
        "return {#KEYS, #ARGV, KEYS[1], ARGV[1], ARGV[2]}",
        "return tostring(redis.call('ZADD', 'z', 1, 'a', 2, 'b')) .. redis.call('ZSCORE', 'z', 'b')",
        "redis.call('ZADD', 'z', 1, 'a') return redis.call('ZRANGE', 'z', 0, -1, 'WITHSCORES')",
        "return cmsgpack.unpack(cmsgpack.pack({1, 'x', {'y', 2}}))",
        "local m = cmsgpack.unpack(cmsgpack.pack({a = 1, b = {c = 'd'}})) return {m.a, m.b.c}",
        "return cmsgpack.pack({1, -1, 127, 128, 70000, 5000000000, 'text', string.rep('y', 40)})",
        "return cmsgpack.pack(0.5) .. cmsgpack.pack(0.1) .. cmsgpack.pack(true) .. cmsgpack.pack({})",
        "local out = {} for i = 1, 3000 do out[i] = i end return #{unpack(out)}",
        "undefined = 1",
        "return undefined",
        "error('mine')",
        "return string.format('%.0f', 1700000000000001) .. string.format('%d', 3)",
        "return redis.sha1hex('x')",
        "return {redis.call('XADD', 's', '5-1', 'a', 'b'), redis.call('XRANGE', 's', '-', '+')}",
        "redis.call('XADD', 's', '5-1', 'a', 'b') redis.call('DEL', 's') return redis.call('EXISTS', 's')",
        "return redis.call()",
        "return redis.call('SET', 'k1')",
        "return redis.call('SET', {}, 1)",
        "local x = pcall(redis.call, 'HGET', 'k1') return x and 'fine' or 'failed'",
        "return 'a' .. nil",
        "this is no program",
    ],
)
def test_a_script(both: Both, script: str) -> None:
    """Conversions, errors, the sandbox and msgpack are those of Redis."""
    both.compare(("SET", "k1", "1"), ("HSET", "k2", "f", "v"))
    both.compare(("EVAL", script, "1", "key", "first", "second"))


def test_scripts_are_called_by_their_hash(both: Both) -> None:
    """An unknown one is refused, a loaded one runs, a flush forgets."""
    sha = both.model.now("SCRIPT", "LOAD", "return 7").decode()
    both.really(("SCRIPT", "FLUSH"))
    both.model.now("SCRIPT", "FLUSH")
    both.compare(
        ("EVALSHA", sha, "0"),
        ("SCRIPT", "LOAD", "return 7"),
        ("EVALSHA", sha, "0"),
        ("SCRIPT", "EXISTS", sha, "0" * 40),
        ("EVALSHA", sha, "x"),
        ("EVALSHA", sha, "3", "a"),
        ("SCRIPT", "FLUSH"),
        ("EVALSHA", sha, "0"),
    )


@pytest.mark.parametrize(
    "script",
    [
        "return redis.call('SET', 'k1', 'new')",
        "redis.call('DEL', 'k9') return redis.call('SET', 'k1', 'new')",
        "local r = redis.pcall('XADD', 's', '*', 'a', 'b') return type(r) == 'table' and r.err or 'added'",
        "redis.call('ZREM', 'z', 'm') redis.call('HSET', 'h', 'f', 'v') return redis.call('XADD', 's', '1-1', 'a', '')",
        "return redis.call('GET', 'k1')",
    ],
)
def test_a_full_server(both: Both, script: str) -> None:
    """Out of memory refuses what would need more, unless the script has written already."""
    both.compare(("SET", "k1", "1"), ("CONFIG", "SET", "maxmemory", "1"))
    both.compare(
        ("EVAL", script, "0"),
        ("SET", "k1", "2"),
        ("DEL", "k1"),
        ("ZADD", "z", "1", "a"),
        ("GET", "k1"),
        ("XDEL", "s", "1-1"),
        ("HSET", "h", "f", "v"),
        ("EXISTS", "k1", "z", "h"),
    )
