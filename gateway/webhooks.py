"""Tells the ends of jobs to the addresses that their clients named.

At least once: an entry of the stream `hooks` is settled only when its address has answered 2xx, or was tried often
enough. Between two tries, and when a gateway dies, it waits in Redis (`shared/broker/hooks.py`). No redirect is
followed, and no address outside the setting webhook_hosts is asked, so that a client cannot make the gateway speak to
whom it likes. Every wait is bounded: one try by `TRY_S`, the tries of one host by `PER_HOST_MAX` at a time.
"""

import asyncio
import hashlib
import hmac
import random
from collections import Counter
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

import aiohttp
import orjson
from yarl import URL

from gateway.jobs import location_of, status_of
from shared import clock, humanlog, wire
from shared.broker import hooks
from shared.broker.connection import BrokerError, Connection
from shared.broker.hooks import Due, Ended
from shared.errors import BadRequest, SettingsError
from shared.eventlog import EventLog
from shared.events import Evt
from shared.keys import Queue
from shared.lifecycle import State
from shared.settings import GatewaySettings

URL_MAX = 2048
TRY_S = 10.0
ACTIVE_MAX = 16
PER_HOST_MAX = 4
BLOCK_MS = 1_000
LOOK_INTERVAL_S = 0.5
RETRY_S = 0.1
BACKOFF_FIRST_MS, BACKOFF_MAX_MS = 1_000, hooks.CLAIM_IDLE_MS


class AllowedHosts:
    """The hosts that webhooks may be sent to: HOST or HOST:PORT each, * for any text; without a port the usual one."""

    def __init__(self, patterns: str) -> None:
        self._patterns = [_split(pattern.strip().lower()) for pattern in patterns.split(",") if pattern.strip()]

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def check(self, text: str) -> str:
        """The address, if it is allowed. Raises BadRequest."""
        try:
            url = URL(text) if len(text) <= URL_MAX else URL()
            host, port = (url.host or "").lower(), url.port
        except ValueError:
            host, port = "", None
        if not host or url.scheme not in ("http", "https") or url.user is not None or url.password is not None:
            raise BadRequest(
                f"x-webhook-url is no address that can be used; send http:// or https://, without a user, of at most "
                f"{URL_MAX} characters"
            )
        usual = {"http": "80", "https": "443"}[url.scheme]
        if not any(
            fnmatchcase(host, allowed) and fnmatchcase(str(port), on or usual) for allowed, on in self._patterns
        ):
            raise BadRequest(
                f"webhooks may not be sent to {host[:100]}:{port}; ask the operator to add it to webhook_hosts"
            )
        return text


def _split(pattern: str) -> tuple[str, str]:
    """Host and port; the port may be missing, the host may be an IPv6 address in brackets."""
    if pattern.startswith("["):
        host, _, rest = pattern[1:].partition("]")
        return host, rest.removeprefix(":")
    host, _, port = pattern.partition(":")
    return host, port


def allowed_hosts(settings: GatewaySettings) -> AllowedHosts:
    """The setting, understood. Raises SettingsError."""
    hosts = AllowedHosts(settings.webhook_hosts)
    if hosts and not settings.webhook_secret:
        raise SettingsError("webhook_hosts is set without webhook_secret: set TAILRACE_WEBHOOK_SECRET to sign with")
    return hosts


def signature(secret: str, unix_s: int, body: bytes) -> str:
    """The header x-tailrace-signature: who knows the secret can check body and time."""
    signed = hmac.new(secret.encode(), f"{unix_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={unix_s},v1={signed}"


def message(queue: Queue, job_id: str, ended: Ended) -> bytes:
    """What is told."""
    told = {
        "id": job_id,
        "model": queue.model,
        "version": queue.version,
        "status": status_of(State(ended.state)),
        "location": location_of(queue, job_id),
    }
    if ended.state != State.DONE:
        try:
            told["error"] = wire.decode_reply(ended.answer).body.error
        except wire.WireError:
            told["error"] = ""
    return orjson.dumps(told)


def delay_ms(tries: int) -> int:
    """How long to wait after so many tries: twice as long each time, less up to a half by chance, to spread them."""
    longest = min(BACKOFF_MAX_MS, BACKOFF_FIRST_MS << min(tries - 1, 16))
    return random.randint(longest // 2, longest)


class Webhooks:
    """Tells the ends of jobs; all gateways that may do it share the work."""

    def __init__(
        self,
        settings: GatewaySettings,
        hosts: AllowedHosts,
        connection: Connection,
        gateway: str,
        queues: Callable[[], Sequence[Queue]],
        log: EventLog,
    ) -> None:
        self._hosts = hosts
        self._secret = settings.webhook_secret
        self._tries_max = settings.webhook_tries
        self._connection = connection
        self._reading = Connection(settings.redis, f"{gateway}-hooks", read_limit_s=4, quiet=True)
        self._queues = queues
        self._log = log
        self._active: set[asyncio.Task[None]] = set()
        self._per_host: Counter[str] = Counter()
        self._cursors: dict[Queue, str] = {}

    async def run(self) -> None:
        """Tell for ever."""
        timeout = aiohttp.ClientTimeout(total=TRY_S)
        connector = aiohttp.TCPConnector(limit=ACTIVE_MAX)
        async with (
            self._reading,
            aiohttp.ClientSession(
                timeout=timeout, connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
            ) as session,
        ):
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._read(session), name="hooks")
                    group.create_task(self._claim(session), name="hooks due")
            finally:
                for task in self._active:
                    task.cancel()
                await asyncio.gather(*self._active, return_exceptions=True)

    async def _read(self, session: aiohttp.ClientSession) -> None:
        while True:
            queues, room = self._queues(), ACTIVE_MAX - len(self._active)
            if not queues or room <= 0:
                await asyncio.sleep(RETRY_S)
                continue
            try:
                self._begin(session, await hooks.wait_for_ends(self._reading, queues, count=room, block_ms=BLOCK_MS))
            except BrokerError:
                await asyncio.sleep(RETRY_S)

    async def _claim(self, session: aiohttp.ClientSession) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            for queue in self._queues():
                room = ACTIVE_MAX - len(self._active)
                if room <= 0:
                    break
                try:
                    after = self._cursors.get(queue, "0-0")
                    self._cursors[queue], due = await hooks.claim(self._connection, queue, after=after, count=room)
                except BrokerError:
                    break
                self._begin(session, due)

    def _begin(self, session: aiohttp.ClientSession, found: Sequence[Due]) -> None:
        for due in found:
            task = asyncio.create_task(self._tell(session, due), name="hook")
            self._active.add(task)
            task.add_done_callback(self._active.discard)

    async def _tell(self, session: aiohttp.ClientSession, due: Due) -> None:
        try:
            ended = await hooks.look(self._connection, due)
            if ended is None:
                await hooks.settle(self._connection, due)
                return
            host = URL(ended.url).host or ""
            if self._per_host[host] >= PER_HOST_MAX:  # a slow host must not hold up the others
                await hooks.put_off(self._connection, due, delay_ms=BACKOFF_FIRST_MS, taken=due.tries - 1)
                return
            self._per_host[host] += 1
            began_ns = clock.now_ns()
            try:
                why = await self._post(session, due, ended)
            finally:
                self._per_host[host] -= 1
                if not self._per_host[host]:
                    del self._per_host[host]
            if why and due.tries < self._tries_max:
                await hooks.put_off(self._connection, due, delay_ms=delay_ms(due.tries), taken=due.tries)
                return
            if why:
                self._give_up(due, host, why, began_ns)
            await hooks.settle(self._connection, due)
        except BrokerError:
            pass  # it is still pending, and will be claimed
        except asyncio.CancelledError:
            hooks.put_off(self._connection, due, delay_ms=0, taken=due.tries - 1)  # this gateway stops: another's turn
            raise

    async def _post(self, session: aiohttp.ClientSession, due: Due, ended: Ended) -> str:
        """One try; why it failed, or nothing."""
        body, unix_s = message(due.queue, due.request_id, ended), clock.wall_us() // 1_000_000
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "tailrace",
            "x-tailrace-signature": signature(self._secret, unix_s, body),
        }
        try:
            url = URL(self._hosts.check(ended.url))
            async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
                return "" if 200 <= response.status < 300 else f"status {response.status}"
        except BadRequest as e:
            return e.message
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as e:
            return str(e) or type(e).__name__

    def _give_up(self, due: Due, host: str, why: str, began_ns: int) -> None:
        # The address may hold a secret of the client's; its host will do.
        told = {"request": due.request_id, "host": host, "tries": due.tries, "reason": why[:300]}
        self._log.write(Evt("webhook_given_up", began_ns, clock.now_ns(), told))
        humanlog.get().warning("a webhook was given up", **told)
