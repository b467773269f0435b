"""HTTP/1.1 as the generator needs it: a request as bytes, and a response put together from the pieces that arrive.

No I/O. One request at a time is outstanding on a connection. aiohttp's client costs three to four times as much of the
core that may also run the server (README.md has the figures), and a generator that is busy measures itself.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

HEAD_BYTES_MAX = 65_536
_BODILESS = (101, 204, 304)
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}\s*(;|$)")


class BadResponse(Exception):
    """What came is not an HTTP/1.1 response, or was cut off."""


class Response(NamedTuple):
    """A whole response. `reusable`: the connection may carry another request."""

    status: int
    head: bytes
    body: bytes
    reusable: bool

    def header(self, name: str) -> str | None:
        """The first value of a header, None without one."""
        value = _value(self.head, self.head.lower(), name.lower().encode())
        return None if value is None else value.decode("latin-1")


def request_bytes(method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """A request as it goes onto the wire. `headers` has Host; Content-Length is added."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


class ResponseReader:
    """Collects one response after the other."""

    __slots__ = ("_body", "_chunks", "_head", "_need", "_pending", "_reusable", "_status")

    def __init__(self) -> None:
        self._pending = b""
        """The beginning of a head."""
        self._head: bytes | None = None
        self._status = 0
        self._reusable = True
        self._need = 0
        self._chunks: _Chunks | None = None
        self._body = bytearray()

    def feed(self, data: bytes) -> Response | None:
        """Take what arrived; the response once it is whole. Raises BadResponse."""
        if self._head is None:
            data = self._pending + data if self._pending else data
            is_remark = True
            while is_remark:
                end = data.find(b"\r\n\r\n")
                if end < 0:
                    self._pending = _beginning(data)
                    return None
                is_remark = self._read_head(data[:end])
                data = data[end + 4 :]
            self._pending = b""
            if self._need == len(data):  # in one piece, as most are: nothing more is copied
                return self._end(data, self._reusable)
            self._body = bytearray(data)
        else:
            self._body += data
        if self._chunks is not None:
            body = self._chunks.decode(self._body)
            return None if body is None else self._end(body, self._reusable and not self._body)
        if self._need < 0 or len(self._body) < self._need:
            return None
        # Whoever sends more than was asked for may be in the middle of anything: no second request on that.
        more = len(self._body) > self._need
        return self._end(bytes(self._body[: self._need]), self._reusable and not more)

    def eof(self) -> Response | None:
        """The connection has ended: the response that this completes, None when none had begun. Raises BadResponse."""
        if self._head is None and not self._pending:
            return None
        if self._head is not None and self._need < 0 and self._chunks is None:
            return self._end(bytes(self._body), False)
        raise BadResponse("the connection ended within the response")

    def _read_head(self, head: bytes) -> bool:
        """Take the status and how the body is framed; True for a remark before the response (1xx), which is nothing."""
        if not head.startswith(b"HTTP/1.") or not head[9:12].isdigit():
            raise BadResponse(f"this is not HTTP/1.1: {head[:40]!r}")
        status = int(head[9:12])
        if status < 200 and status != 101:
            return True
        low = head.lower()
        connection = _value(low, low, b"connection") or b""
        self._reusable = b"close" not in connection and (head[7:8] == b"1" or b"keep-alive" in connection)
        self._head, self._status = head, status
        self._need, self._chunks = _framing(status, low)
        return False

    def _end(self, body: bytes, reusable: bool) -> Response:
        assert self._head is not None
        response = Response(self._status, self._head, body, reusable)
        self._head = None
        return response


def _beginning(data: bytes) -> bytes:
    """`data`, which may become a head. Raises BadResponse when it cannot."""
    if not b"HTTP/1.".startswith(data[:7]):
        raise BadResponse(f"this is not HTTP/1.1: {data[:40]!r}")
    if len(data) > HEAD_BYTES_MAX:
        raise BadResponse(f"no end of the header within {HEAD_BYTES_MAX} bytes")
    return data


def _framing(status: int, low: bytes) -> "tuple[int, _Chunks | None]":
    """Bytes of the body (-1: up to the end of the connection), and its chunks if it comes in such."""
    if status in _BODILESS:
        return 0, None
    if b"chunked" in (_value(low, low, b"transfer-encoding") or b""):
        return -1, _Chunks()
    length = _value(low, low, b"content-length")
    if length is None:
        return -1, None
    if not length.isdigit():
        raise BadResponse(f"Content-Length is {length[:40]!r}")
    return int(length), None


def _value(head: bytes, low: bytes, name: bytes) -> bytes | None:
    """The value of a header; `low` is `head` in small letters."""
    at = low.find(b"\r\n" + name + b":")
    if at < 0:
        return None
    start = at + len(name) + 3
    end = head.find(b"\r\n", start)
    return head[start : end if end >= 0 else len(head)].strip()


class _Chunks:
    """A body in chunks (RFC 9112, 7.1)."""

    __slots__ = ("_left", "_parts", "_trailer")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._left = -1
        """Bytes of the current chunk still to come, its line end included; -1: its size is next."""
        self._trailer = False

    def decode(self, buffer: bytearray) -> bytes | None:
        """Consume what can be; the body once it is whole. Raises BadResponse."""
        while True:
            if self._left >= 0:
                if len(buffer) < self._left:
                    return None
                self._parts.append(bytes(buffer[: self._left - 2]))
                del buffer[: self._left]
                self._left = -1
            end = buffer.find(b"\r\n")
            if end < 0:
                if len(buffer) > HEAD_BYTES_MAX:
                    raise BadResponse("a chunk without a size")
                return None
            line = bytes(buffer[:end])
            del buffer[: end + 2]
            if self._trailer:
                if not line:
                    return b"".join(self._parts)
                continue
            if not _SIZE.match(line):
                raise BadResponse(f"the size of a chunk is {line[:40]!r}")
            size = int(line.partition(b";")[0], 16)
            self._trailer = size == 0
            self._left = size + 2 if size else -1
