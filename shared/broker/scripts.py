"""The Lua scripts: read from their files, called by SHA, loaded when Redis does not know them."""

import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from typing import Any

from shared.broker.connection import Argument, Connection, ReplyError
from shared.keys import GROUP, SUSPECTS
from shared.wire import CONTENT_TYPE, PARCEL_TYPE, SCHEMA_VERSION

READY_MAX = 128
"""So many undelivered entries make a backlog: from then on tenants wait in lists of their own and take turns."""
LOWER_TURN = 8
"""Of so many requests one is from a lane below the first that has work."""
DEAD_LETTERS_MAX = 1_000
DEAD_LETTERS_BYTES_MAX = 256 << 20

NAMES = (
    "accept",
    "announce",
    "attach",
    "audit",
    "beat",
    "cancel",
    "complete",
    "fetch",
    "leave",
    "listen",
    "offer",
    "peek",
    "purge",
    "release",
    "replay",
    "retry",
    "survey",
    "throttle",
    "tick",
)


def _constants() -> bytes:
    return f"""\
local GROUP, SUSPECTS, SCHEMA = '{GROUP}', {SUSPECTS}, '{SCHEMA_VERSION}'
local CONTENT_TYPE, PARCEL_TYPE = '{CONTENT_TYPE}', '{PARCEL_TYPE}'
local READY_MAX, LOWER_TURN, DLQ_MAX, DLQ_BYTES_MAX =
  {READY_MAX}, {LOWER_TURN}, {DEAD_LETTERS_MAX}, {DEAD_LETTERS_BYTES_MAX}
""".encode()


@cache
def source(name: str) -> bytes:
    """The whole text of a script, the names and the common part first."""
    folder = resources.files("shared.broker")
    return _constants() + (folder / "common.lua").read_bytes() + (folder / f"{name}.lua").read_bytes()


@cache
def sha(name: str) -> str:
    """What EVALSHA calls the script. It is a content address: two versions of tailrace never share a script."""
    return hashlib.sha1(source(name), usedforsecurity=False).hexdigest()


async def load_all(connection: Connection) -> None:
    """Load every script: after each (re)connection, since a restarted Redis has forgotten them."""
    loads = [connection.call("SCRIPT", "LOAD", source(name)) for name in NAMES]
    for load in loads:
        await load


async def run(
    connection: Connection, name: str, keys: Sequence[str], args: Iterable[Argument], *, in_place: bool = False
) -> Any:
    """Call a script. Raises BrokerError; only an unknown script is sent again, because it certainly did not run.

    `in_place`: see `Connection.call`.
    """
    command = (sha(name), len(keys), *keys, *args)
    try:
        return await connection.call("EVALSHA", *command, in_place=in_place)
    except ReplyError as e:
        if e.code != "NOSCRIPT":
            raise
    await connection.call("SCRIPT", "LOAD", source(name))
    return await connection.call("EVALSHA", *command, in_place=in_place)
