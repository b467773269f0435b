"""Request ids: 32 hex digits that sort by time of birth, unique across gateways without asking anyone."""

import itertools
import secrets

from shared import clock


class RequestIds:
    """Makes ids: 48 bits of wall-clock milliseconds, 48 of chance drawn once per process, 32 of a counter.

    The counter comes last, so that the end of an id tells apart what people look at side by side.
    """

    def __init__(self) -> None:
        self._process = secrets.token_hex(6)
        self._counter = itertools.count(secrets.randbits(32))

    def next(self) -> str:
        """A new id."""
        return f"{clock.wall_us() // 1000:012x}{self._process}{next(self._counter) & 0xFFFFFFFF:08x}"
