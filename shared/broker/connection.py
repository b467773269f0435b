"""One connection to Redis, multiplexed: the commands of one event-loop tick leave in one write.

Theory of operation. `call` appends the packed command to a buffer and a future to a queue; the first append of a tick
schedules one flush. Replies match futures in order. Cancelling a call only forgets its future, so it can never shift
the replies of others. A command that was in flight when the connection broke fails with `OutcomeUnknown`: it may or
may not have been executed, and is never sent again from here; our scripts are idempotent, so the caller can repeat
them. A command not yet written fails with `NotConnected`: certainly not executed. The queue of unanswered commands is
bounded. A silent connection is probed, and given up when the probe stays unanswered. Measured against a pool of
redis-py connections: 20 times the commands per second at 64 callers (docs/decisions.md).

Of several servers only the primary is used. Each reconnection asks them in turn, beginning with the last one, for their
ROLE, and so does each connection once a second, since a demoted server keeps its connections and even answers reads. A
reply that only a replica gives (READONLY, MASTERDOWN) ends the connection as well; its caller gets that error, and what
was in flight behind it has an unknown outcome. A connection that did not last is made again only after a pause, so that
no answer of a server can make a hot loop.

redis-py reads the URL and names the error classes; hiredis packs and parses.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from redis.asyncio.connection import parse_url

from shared import clock, humanlog, redis_urls
from shared.broker import fitness
from shared.broker.broker_errors import BrokerError, Busy, NotConnected, NotUsable, OutcomeUnknown, ReplyError
from shared.broker.pipe import Argument, Pipe, fail
from shared.errors import SettingsError

__all__ = [
    "Argument",
    "BrokerError",
    "Busy",
    "Connection",
    "NotConnected",
    "NotUsable",
    "OutcomeUnknown",
    "ReplyError",
]

CONNECT_TIMEOUT_S = 2.0
PROBE_AFTER_S = 1.0
DEAD_AFTER_S = 3.0
BACKOFF_FIRST_S = 0.02
BACKOFF_MAX_S = 0.5
TELL_AGAIN_S = 10.0
TELL_ERROR_AGAIN_S = 60.0
STEADY_S = 1.0
"""A connection that lasted this long was a good one: the next attempt comes at once."""


class Connection:
    """A self-healing connection to the primary. Use as an async context manager, or `start` and `close` it.

    `url` may be several, with commas between. `on_connect` runs after each (re)connection: its commands go before
    everybody else's, and the connection counts as connected only when it has returned. `quiet`: leave it to the
    process' main connection to tell people of trouble, and to look whether the server is fit.

    A server that might evict our keys is refused if it is the first that this connection finds: the body of the
    context manager is cancelled, and SettingsError raised in its place. Later it is only told.
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        on_connect: Callable[["Connection"], Awaitable[None]] | None = None,
        on_change: Callable[[bool], None] | None = None,
        read_limit_s: float = DEAD_AFTER_S,
        quiet: bool = False,
    ) -> None:
        self._servers = [_Server(u, redis_urls.without_secrets(u), dict(parse_url(u))) for u in redis_urls.split(url)]
        self._at = 0
        self._name = name
        self._on_connect = on_connect
        self._on_change = on_change
        self._quiet = quiet
        self._read_limit_ns = int(read_limit_s * 1e9)
        self._protocol: Pipe | None = None
        self._ready = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._owner: asyncio.Task[Any] | None = None
        self._failure: BaseException | None = None
        self._found_fit = False
        self._knows_role = True
        self._probe: asyncio.Future[Any] | None = None
        self._told: dict[str, int] = {}
        """When what was told last, in ns."""
        self.client_id = 0
        """Redis' number of this connection (CLIENT ID), for CLIENT UNBLOCK; new after each reconnection."""

    @property
    def server(self) -> str:
        """The server in use, or asked next: its URL without secrets."""
        return self._servers[self._at].shown

    async def __aenter__(self) -> "Connection":
        self._owner = asyncio.current_task()
        self.start()
        assert self._keeper is not None
        self._keeper.add_done_callback(self._keeper_ended)
        return self

    async def __aexit__(self, *_: object) -> None:
        owner, self._owner = self._owner, None
        await self.close()
        if self._failure:
            if owner:
                owner.uncancel()
            raise self._failure

    def _keeper_ended(self, keeper: "asyncio.Task[None]") -> None:
        if not keeper.cancelled() and (failure := keeper.exception()) and self._owner:
            self._failure = failure
            self._owner.cancel()

    def start(self) -> None:
        """Begin to connect, in the background, for ever."""
        self._keeper = asyncio.create_task(self._keep_connected(), name=f"redis {self._name}")

    async def close(self) -> None:
        """Stop; commands still unanswered fail."""
        if self._keeper:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._protocol:
            self._protocol.abort()

    @property
    def connected(self) -> bool:
        """True while commands can be sent."""
        return self._ready.is_set()

    async def wait_connected(self) -> None:
        """Return once commands can be sent."""
        await self._ready.wait()

    def call(self, *command: Argument, in_place: bool = False) -> "asyncio.Future[Any]":
        """Send a command with this tick's others. The future gives the reply, or raises a BrokerError.

        `in_place`: long arguments (`pipe.LARGE_BYTES`) are written from where they lie.
        """
        if self._protocol is None:
            failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            return fail(failed, NotConnected(f"no connection to Redis at {self.server}"))
        return self._protocol.send(command, in_place=in_place)

    async def _keep_connected(self) -> None:
        backoff_s = BACKOFF_FIRST_S
        while True:
            lost = await self._connect_to_some()
            if lost is not None:
                connected_at_ns = clock.now_ns()
                if self._on_change:
                    self._on_change(True)
                try:
                    await self._watch(lost)
                finally:
                    self._ready.clear()
                    if self._protocol:
                        self._protocol.abort()
                    self._protocol = None
                if self._on_change:
                    self._on_change(False)
                if clock.now_ns() - connected_at_ns > STEADY_S * 1e9:
                    backoff_s = BACKOFF_FIRST_S
                    continue
            await asyncio.sleep(backoff_s)
            backoff_s = min(BACKOFF_MAX_S, backoff_s * 2)

    async def _connect_to_some(self) -> "asyncio.Future[None] | None":
        """Try each server once. None: none will do now."""
        reasons = []
        for _ in self._servers:
            try:
                return await self._connect(self._servers[self._at])
            except (OSError, BrokerError, TimeoutError) as e:
                reasons.append((self.server, str(e) or type(e).__name__))
                self._at = (self._at + 1) % len(self._servers)
        reason = reasons[0][1] if len(reasons) == 1 else "; ".join(f"{server}: {why}" for server, why in reasons)
        if not self._quiet:
            url = ",".join(server for server, _ in reasons)
            self._tell("", TELL_AGAIN_S, "cannot reach Redis; trying on", url=url, reason=reason)
        return None

    async def _connect(self, server: "_Server") -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        o = server.options
        lost: asyncio.Future[None] = loop.create_future()

        def make() -> Pipe:
            return Pipe(lost, self._not_connected, self._heard_error)

        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            if "path" in o:
                _, protocol = await loop.create_unix_connection(make, o["path"])
            else:
                tls = ssl.create_default_context() if server.url.startswith("rediss://") else None
                _, protocol = await loop.create_connection(
                    make, o.get("host", "localhost"), o.get("port", 6379), ssl=tls
                )
            try:
                await self._greet(protocol, o)
                if not self._quiet:
                    await self._look_whether_fit(protocol)
                self._protocol = protocol
                if self._on_connect:
                    await self._on_connect(self)
            except BaseException:
                self._protocol = None
                protocol.abort()
                raise
        self._probe = None
        self._ready.set()
        return lost

    async def _greet(self, protocol: "Pipe", o: dict[str, Any]) -> None:
        if o.get("password"):
            user = [o["username"]] if o.get("username") else []
            await protocol.send(("AUTH", *user, o["password"]))
        if o.get("db"):
            await protocol.send(("SELECT", o["db"]))
        await protocol.send(("CLIENT", "SETNAME", self._name))
        self.client_id = await protocol.send(("CLIENT", "ID"))
        try:
            if why := fitness.why_not_primary(await protocol.send(("ROLE",))):
                raise NotUsable(why)
            self._knows_role = True
        except ReplyError:
            self._knows_role = False  # not permitted to us: READONLY will tell
        # A server that still loads its data answers LOADING: not connected yet.
        await protocol.send(("PING",))

    async def _look_whether_fit(self, protocol: "Pipe") -> None:
        """Raises SettingsError when the first server that was found is a cluster, or might evict our keys."""
        try:
            memory, cluster = protocol.send(("INFO", "memory")), protocol.send(("INFO", "cluster"))
            why = fitness.why_cluster(await cluster) or fitness.why_it_evicts(await memory)
        except (ReplyError, ValueError):
            text = "cannot see whether Redis may evict keys (INFO memory); make sure that its policy is noeviction"
            self._tell("memory", float("inf"), text, url=self.server)
            return
        if why and self._owner and not self._found_fit:
            raise SettingsError(f"Redis at {self.server} cannot be used: {why}")
        if why:
            self._tell("memory", TELL_ERROR_AGAIN_S, "Redis is not fit for a queue", url=self.server, reason=why)
        self._found_fit = True

    # -- what the server says by itself ----------------------------------------------------------------------------

    def _heard_error(self, protocol: "Pipe", error: ReplyError) -> None:
        if protocol is not self._protocol or not self._ready.is_set():
            return  # whoever connects has it
        code = error.code
        if code in fitness.ELSEWHERE:
            self._look_elsewhere(protocol, str(error))
        elif code == "UNBLOCKED":
            self._ask_role(protocol)  # a demotion, or just a stream that vanished
        elif code not in fitness.ROUTINE:
            self._tell(code, TELL_ERROR_AGAIN_S, "Redis refuses a command", url=self.server, reason=str(error)[:300])

    def _ask_role(self, protocol: "Pipe") -> None:
        probe = protocol.send(("ROLE",) if self._knows_role else ("PING",))

        def told(reply: "asyncio.Future[Any]") -> None:
            if not reply.cancelled() and not reply.exception() and (why := fitness.why_not_primary(reply.result())):
                self._look_elsewhere(protocol, why)

        probe.add_done_callback(told)
        self._probe = probe

    def _look_elsewhere(self, protocol: "Pipe", why: str) -> None:
        if protocol is not self._protocol or not self._ready.is_set():
            return
        self._ready.clear()
        protocol.abort()
        if not self._quiet:
            humanlog.get().warning("this Redis is no primary; looking for it", url=self.server, reason=why)
        self._at = (self._at + 1) % len(self._servers)

    def _tell(self, about: str, again_s: float, event: str, **details: str) -> None:
        now = clock.now_ns()
        if about not in self._told or now - self._told[about] > again_s * 1e9:
            self._told[about] = now
            humanlog.get().warning(event, **details)

    def _not_connected(self, protocol: "Pipe") -> None:
        # Before those who wait for a reply hear of the loss: they must not find us still connected.
        if protocol is self._protocol:
            self._ready.clear()

    async def _watch(self, lost: "asyncio.Future[None]") -> None:
        """Return when the connection is gone, is no primary's, or was silent for too long with something unanswered."""
        protocol = self._protocol
        assert protocol is not None
        while not lost.done():
            await asyncio.wait([lost], timeout=PROBE_AFTER_S)
            silent_ns = clock.now_ns() - protocol.heard_at_ns
            if protocol.waiting and silent_ns > self._read_limit_ns:
                return
            # On a blocking connection the answer comes when the read has ended.
            if self._probe is None or self._probe.done():
                self._ask_role(protocol)


@dataclass(frozen=True, slots=True)
class _Server:
    url: str
    shown: str
    options: dict[str, Any]
