"""The Lua scripts: read from their files, called by SHA, loaded when Redis does not know them."""

import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from typing import Any

from shared.broker.connection import Argument, Connection, ReplyError

NAMES = (
    "accept",
    "announce",
    "beat",
    "cancel",
    "complete",
    "fetch",
    "leave",
    "listen",
    "offer",
    "peek",
    "survey",
    "tick",
)


@cache
def source(name: str) -> bytes:
    """The whole text of a script, the common part first."""
    folder = resources.files("shared.broker")
    return (folder / "common.lua").read_bytes() + (folder / f"{name}.lua").read_bytes()


@cache
def sha(name: str) -> str:
    """What EVALSHA calls the script. It is a content address: two versions of tailrace never share a script."""
    return hashlib.sha1(source(name), usedforsecurity=False).hexdigest()


async def load_all(connection: Connection) -> None:
    """Load every script: after each (re)connection, since a restarted Redis has forgotten them."""
    loads = [connection.call("SCRIPT", "LOAD", source(name)) for name in NAMES]
    for load in loads:
        await load


async def run(connection: Connection, name: str, keys: Sequence[str], args: Iterable[Argument]) -> Any:
    """Call a script. Raises BrokerError; only an unknown script is sent again, because it certainly did not run."""
    command = (sha(name), len(keys), *keys, *args)
    try:
        return await connection.call("EVALSHA", *command)
    except ReplyError as e:
        if e.code != "NOSCRIPT":
            raise
    await connection.call("SCRIPT", "LOAD", source(name))
    return await connection.call("EVALSHA", *command)
