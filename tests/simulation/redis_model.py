"""A small Redis in this process, for simulations: fast, with a clock that is given to it, and exactly reproducible.

Theory of operation. `Database` holds the data; the commands are functions on it, entered in a table by the modules
`redis_plain`, `redis_lists`, `redis_zsets`, `redis_streams` and `redis_groups`; `redis_reading` has the two commands
that may block; `redis_scripts` runs Lua. Here is the server around them: clients with their order of commands, blocked
reads, scripts by SHA. It speaks the wire format in both directions, so that the real client code can be put before it.

It is modelled on Redis 6.2, the oldest server that tailrace supports, and is believed only as far as
`test_contract.py` goes, which gives the same commands to it and to a real server.
"""

import copy
import hashlib
from collections import deque
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any, Protocol

from simulation import redis_groups, redis_lists, redis_plain, redis_reading, redis_streams, redis_zsets
from simulation.redis_scripts import OOM, Encoded, encoded, lua
from simulation.redis_values import COMMANDS, OK, SYNTAX, Database, RedisError, Reply, Status, command, integer

__all__ = ["Client", "RedisModel", "redis_groups", "redis_lists", "redis_plain", "redis_streams", "redis_zsets"]


class Timer(Protocol):
    """What a scheduler returns."""

    def cancel(self) -> None: ...


class Client:
    """A connection, seen from the server. `send` takes the replies."""

    __slots__ = ("id", "inbox", "name", "read", "send", "timer")

    def __init__(self, id: int, send: Callable[[bytes], None]) -> None:
        self.id = id
        self.name = ""
        self.send = send
        self.inbox: deque[list[bytes]] = deque()
        self.read: redis_reading.Read | None = None
        """The read that it is blocked in."""
        self.timer: Timer | None = None


Saved = tuple[dict[bytes, Any], dict[bytes, int]]
"""Values and times to live, by key."""
Observer = Callable[[Client, list[bytes], bytes], None]


class RedisModel:
    """The server. Without `schedule` a read that would block finds nothing at once."""

    def __init__(
        self,
        now_us: Callable[[], int],
        *,
        schedule: Callable[[float, Callable[[], None]], Timer] | None = None,
        observe: Observer | None = None,
    ) -> None:
        self.db = Database(now_us)
        self._schedule = schedule
        self._observe = observe
        self._scripts: dict[bytes, bytes] = {}
        self._config = {b"maxmemory": b"0", b"maxmemory-policy": b"noeviction"}
        self._clients: dict[int, Client] = {}
        self._blocked: dict[Client, None] = {}
        self._served: deque[Client] = deque()
        self._numbers = 0

    def connect(self, send: Callable[[bytes], None]) -> Client:
        """A client has come."""
        self._numbers += 1
        client = self._clients[self._numbers] = Client(self._numbers, send)
        return client

    def disconnect(self, client: Client) -> None:
        """A client has gone; what it sent and was not executed never will be."""
        self._clients.pop(client.id, None)
        client.inbox.clear()
        self._release(client)

    def restart(self, data: Saved | None = None) -> None:
        """The server ends and starts again, with its data or with saved ones: no clients, no scripts."""
        for client in list(self._clients.values()):
            self.disconnect(client)
        self._scripts.clear()
        if data is not None:
            self.db.values, self.db.expires_ms = copy.deepcopy(data)

    def save(self) -> Saved:
        """The data as it is now, for a restart."""
        return copy.deepcopy((self.db.values, self.db.expires_ms))

    def receive(self, client: Client, commands: Iterable[list[bytes]]) -> None:
        """Execute what a client sent, in order; behind a blocked read the rest waits."""
        if client.id not in self._clients:
            return
        client.inbox.extend(commands)
        self._drain(client)
        while self._served:
            self._drain(self._served.popleft())

    def _drain(self, client: Client) -> None:
        replies = []
        while client.inbox and client.read is None:
            words = client.inbox.popleft()
            reply = self._reply(client, words)
            if self._observe and (reply is not None):
                self._observe(client, words, reply)
            if reply is not None:
                replies.append(reply)
            if self.db.rung:
                self._serve_blocked()
        if replies:
            client.send(b"".join(replies))

    def _reply(self, client: Client, words: list[bytes]) -> bytes | None:
        """Execute one command. None: it blocks."""
        name = words[0].upper()
        found = COMMANDS.get(name)
        try:
            if found is not None:
                if len(words) != found.arity if found.arity > 0 else len(words) < -found.arity:
                    raise RedisError(f"ERR wrong number of arguments for '{words[0].decode().lower()}' command")
                if found.deny_oom and self.db.out_of_memory:
                    raise RedisError(OOM)
                return encoded(found.run(self.db, words[1:]))
            if name == b"EVALSHA":
                return self._evaluate(words[1].lower(), words)
            if name in (b"XREAD", b"XREADGROUP"):
                return self._read(client, words[1:], in_group=name == b"XREADGROUP")
            return encoded(self._of_the_server(client, name, words))
        except RedisError as e:
            return encoded(e)

    # -- scripts -------------------------------------------------------------------------------------------------------

    def _evaluate(self, sha: bytes, words: list[bytes]) -> bytes:
        text = self._scripts.get(sha)
        if text is None:
            raise RedisError("NOSCRIPT No matching script. Please use EVAL.")
        count = integer(words[2])
        if count > len(words) - 3:
            raise RedisError("ERR Number of keys can't be greater than number of args")
        if count < 0:
            raise RedisError("ERR Number of keys can't be negative")
        script = lua().compile(text)
        return lua().run(self.db, script, sha, words[3 : 3 + count], words[3 + count :])

    def _script(self, a: list[bytes]) -> Reply:
        what = a[0].upper()
        if what == b"LOAD":
            lua().compile(a[1])
            return self._learn(a[1])
        if what == b"EXISTS":
            return [int(sha.lower() in self._scripts) for sha in a[1:]]
        if what == b"FLUSH":
            self._scripts.clear()
            return OK
        raise RedisError(SYNTAX)

    def _learn(self, text: bytes) -> bytes:
        sha = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
        self._scripts[sha] = text
        return sha

    # -- blocked reads -------------------------------------------------------------------------------------------------

    def _read(self, client: Client, a: list[bytes], *, in_group: bool) -> bytes | None:
        read = redis_reading.parse(self.db, a, in_group=in_group)
        reply = redis_reading.serve(self.db, read)
        if reply is not None or read.block_ms is None or self._schedule is None:
            return encoded(reply)
        client.read = read
        self._blocked[client] = None
        if read.block_ms:
            client.timer = self._schedule(read.block_ms / 1000, lambda: self._unblock(client, None))
        return None

    def _serve_blocked(self) -> None:
        rung, self.db.rung = list(self.db.rung), {}
        for key in rung:
            for client in [c for c in self._blocked if c.read and key in c.read.after]:
                assert client.read is not None
                try:
                    reply = redis_reading.serve_blocked(self.db, client.read, key)
                except RedisError as e:
                    reply = e
                if reply is not None:
                    self._unblock(client, reply, resume=False)

    def _unblock(self, client: Client, reply: Reply, *, resume: bool = True) -> None:
        words = [b"(blocked)", *(client.read.after if client.read else ())]
        self._release(client)
        sent = encoded(reply)
        if self._observe and reply is not None:
            self._observe(client, words, sent)
        client.send(sent)
        if resume:
            self.receive(client, ())
        else:
            self._served.append(client)

    def _release(self, client: Client) -> None:
        client.read = None
        self._blocked.pop(client, None)
        if client.timer:
            client.timer.cancel()
            client.timer = None

    # -- the server itself ---------------------------------------------------------------------------------------------

    def _of_the_server(self, client: Client, name: bytes, a: list[bytes]) -> Reply:
        spelled, beginning = a[0], "".join(f"`{word.decode()}`, " for word in a[1:])
        a = a[1:]
        if name == b"SCRIPT" and a:
            return self._script(a)
        if name == b"CLIENT" and a:
            return self._client(client, a)
        if name == b"CONFIG" and len(a) > 1:
            return self._configure(a)
        if name == b"EVAL" and len(a) > 1:
            lua().compile(a[0])
            return Encoded(self._evaluate(self._learn(a[0]), [b"EVAL", *a]))
        if name in (b"AUTH", b"SELECT", b"DEBUG"):
            return OK
        if name == b"WAIT":
            return 0  # there are no replicas
        if name == b"INFO":
            return self._info()
        if name == b"ROLE":
            return [b"master", 0, []]
        raise RedisError(f"ERR unknown command `{spelled.decode()}`, with args beginning with: {beginning}")

    def _info(self) -> bytes:
        facts = {
            b"redis_version": b"6.2.14",
            b"maxmemory": self._config[b"maxmemory"],
            b"maxmemory_policy": self._config[b"maxmemory-policy"],
            b"blocked_clients": b"%d" % len(self._blocked),
            b"connected_clients": b"%d" % len(self._clients),
        }
        return b"".join(b"%b:%b\r\n" % fact for fact in facts.items())

    def _client(self, client: Client, a: list[bytes]) -> Reply:
        what = a[0].upper()
        if what == b"SETNAME":
            client.name = a[1].decode()
            return OK
        if what == b"GETNAME":
            return client.name.encode() or None
        if what == b"ID":
            return client.id
        if what == b"UNBLOCK":
            other = self._clients.get(integer(a[1]))
            if other is None or other.read is None:
                return 0
            by_error = len(a) > 2 and a[2].upper() == b"ERROR"
            self._unblock(
                other,
                RedisError("UNBLOCKED client unblocked via CLIENT UNBLOCK") if by_error else None,
                resume=False,
            )
            return 1
        raise RedisError(SYNTAX)

    def _configure(self, a: list[bytes]) -> Reply:
        if a[0].upper() == b"GET":
            pattern = a[1].decode()
            return [w for k, v in self._config.items() if fnmatchcase(k.decode(), pattern) for w in (k, v)]
        self._config[a[1]] = a[2]
        # Nobody counts the bytes of a model: any limit that is set is exceeded.
        self.db.out_of_memory = self._config[b"maxmemory"] != b"0"
        return OK


@command("TIME", 1)
def time(db: Database, _: list[bytes]) -> Reply:
    now = db.now_us()
    return [b"%d" % (now // 1_000_000), b"%d" % (now % 1_000_000)]


@command("PING", -1)
def ping(_: Database, a: list[bytes]) -> Reply:
    return a[0] if a else Status(b"PONG")


@command("ECHO", 2)
def echo(_: Database, a: list[bytes]) -> Reply:
    return a[0]
