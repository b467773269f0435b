"""What happened in a run, in order: compared by digest, and shown to people."""

import hashlib
from collections.abc import Iterator
from typing import Any

_QUIET = {b"PING", b"(blocked)"}
_SHORT = 60


class Trace:
    """Facts with the virtual time. Nothing is rendered before somebody looks."""

    def __init__(self) -> None:
        self._facts: list[tuple[int, str, Any, Any]] = []

    def note(self, now_ns: int, who: str, what: str, **details: Any) -> None:
        """Something happened to somebody."""
        self._facts.append((now_ns, who, what, details))

    def command(self, now_ns: int, who: str, words: list[bytes], reply: bytes) -> None:
        """The server answered a command."""
        self._facts.append((now_ns, who, words, reply))

    def digest(self) -> str:
        """Equal for equal runs."""
        return hashlib.sha256(repr(self._facts).encode()).hexdigest()[:16]

    def lines(self, names: dict[bytes, str], *, commands: bool) -> Iterator[str]:
        """The facts for people; without `commands` only what happened around the server. `names`: scripts by SHA."""
        for now_ns, who, what, more in self._facts:
            at = f"{now_ns / 1e9 - 1000:10.6f}  {who:12}"
            if isinstance(what, str):
                details = " ".join(f"{name}={value}" for name, value in more.items())
                yield f"{at}  ** {what}  {details}"
            elif commands and what[0].upper() not in _QUIET:
                yield f"{at}  {_spelled(what, names)}  ->  {_shown(more)}"


def _spelled(words: list[bytes], names: dict[bytes, str]) -> str:
    name = words[0].decode()
    rest = words[1:]
    if name == "EVALSHA":
        name, rest = names.get(words[1], "?"), [words[2], *words[3:]]
    elif name == "SCRIPT":
        return "SCRIPT LOAD"
    return " ".join([name, *(_shown(word) for word in rest)])


def _shown(data: bytes) -> str:
    text = repr(data)[2:-1].replace("tailrace:{toy/1|0}:", "T:").replace("tailrace:{toy/1|0}", "T")
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}~{len(data)}"
