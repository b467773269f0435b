"""Which handler answers a request: patterns of path segments, each `{name}` any one segment, a final `*` any rest.

Kept apart from aiohttp's router, which costs a sixth of what aiohttp spends on a request (docs/decisions.md).
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote

from aiohttp import web

from gateway.call import Call
from gateway.reply import HttpReply
from shared.errors import ErrorKind, TailraceError

Handler = Callable[[web.BaseRequest, Call], Awaitable[HttpReply]]
PATHS_REMEMBERED = 1024
MODEL = "/v2/models/{model}"
VERSION = "/v2/models/{model}/versions/{version}"


class Route(NamedTuple):
    """What to call, and what the log calls it."""

    name: str
    handler: Handler


class Routes:
    """A table of routes."""

    def __init__(self) -> None:
        self._by_pattern: dict[str, dict[str, Route]] = {}
        self._patterns: list[list[str]] = []
        # A method, so that each table has its own memory.
        self._find = lru_cache(PATHS_REMEMBERED)(self._search)

    def add(self, method: str, pattern: str, handler: Handler, *, name: str = "") -> None:
        """Add a route; earlier ones win."""
        if pattern not in self._by_pattern:
            self._by_pattern[pattern] = {}
            self._patterns.append(pattern.split("/"))
        self._by_pattern[pattern][method] = Route(name or f"{method} {pattern}", handler)

    def match(self, method: str, raw_path: str) -> tuple[Route, Mapping[str, str]]:
        """The route of a request and the values of its pattern. Raises NOT_FOUND, METHOD_NOT_ALLOWED."""
        pattern, values = self._find(raw_path)
        if pattern is None:
            text = f"there is nothing at {unquote(raw_path)[:200]}; GET /v2 tells what this server is"
            raise TailraceError(ErrorKind.NOT_FOUND, text)
        route = self._by_pattern[pattern].get(method)
        if route is None:
            text = f"{method} is not allowed on {unquote(raw_path)[:200]}; allowed: {self.allowed(raw_path)}"
            raise TailraceError(ErrorKind.METHOD_NOT_ALLOWED, text)
        return route, values

    def allowed(self, raw_path: str) -> str:
        """The methods of a path, as the Allow header lists them."""
        return ", ".join(sorted(self._by_pattern[self._find(raw_path)[0] or ""]))

    def _search(self, raw_path: str) -> tuple[str | None, dict[str, str]]:
        segments = [unquote(segment) for segment in raw_path.partition("?")[0].split("/")]
        for parts in self._patterns:
            values = _fit(parts, segments)
            if values is not None:
                return "/".join(parts), values
        return None, {}


def _fit(parts: list[str], segments: list[str]) -> dict[str, str] | None:
    if parts[-1] == "*":
        parts = parts[:-1]
        segments = segments[: len(parts)]
    if len(parts) != len(segments):
        return None
    values = {}
    for part, segment in zip(parts, segments, strict=True):
        if part.startswith("{") and segment:
            values[part[1:-1]] = segment
        elif part != segment:
            return None
    return values
