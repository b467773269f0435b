"""Request ids: 32 hex digits that sort by time of birth, unique across gateways without asking anyone."""

import itertools
import secrets

from shared import clock


class RequestIds:
    """Makes ids: 48 bits of wall-clock milliseconds, 16 of a counter, 64 of chance drawn once per process."""

    def __init__(self) -> None:
        self._suffix = secrets.token_hex(8)
        self._counter = itertools.count(secrets.randbits(16))

    def next(self) -> str:
        """A new id."""
        return f"{clock.wall_us() // 1000:012x}{next(self._counter) & 0xFFFF:04x}{self._suffix}"
