"""Request bodies in, response bodies out: bounded, unpacked and packed beside the event loop."""

import asyncio
import contextlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.hdrs import CONTENT_ENCODING
from aiohttp.http_exceptions import HttpProcessingError

from gateway.reply import HttpReply
from shared.errors import BadRequest, ErrorKind, TailraceError

THREAD_FROM_PACKED_BYTES = 1024
"""A longer piece of a packed body is unpacked in a thread: it may become a thousand times as long."""
COMPRESS_BYTES_MIN = 1024
COMPRESS_IN_THREAD_BYTES_MIN = 64 * 1024
JOIN_IN_THREAD_BYTES_MIN = 1 << 20
"""Only joins of so much let go of the interpreter."""
PACE_FROM_BYTES = 256 * 1024
"""A body that is longer than this takes turns with the others of that kind."""


@dataclass(slots=True)
class BodyBudget:
    """Bytes of all bodies that are being read now, and how many there may be; `turn`: whose piece is next."""

    bytes_max: int
    held: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @contextlib.contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Count a body that is kept for a while. Raises QUEUE_FULL when it would break the budget."""
        if self.held + size > self.bytes_max:
            text = f"this gateway holds {self.held} bytes of bodies already; retry after 1 s"
            raise TailraceError(ErrorKind.QUEUE_FULL, text, retry_after_s=1)
        self.held += size
        try:
            yield
        finally:
            self.held -= size


async def read_body(request: web.BaseRequest, bytes_max: int, budget: BodyBudget) -> bytes:
    """The whole body, unpacked.

    Raises TOO_LARGE before more than `bytes_max` bytes are held, QUEUE_FULL when all bodies together would break the
    budget, and BAD_REQUEST.
    """
    content = request.content
    if content.is_eof() and content.exception() is None and CONTENT_ENCODING not in request.headers:
        # The common case: the whole body came with the head, so there is nothing to wait for.
        body = content.read_nowait()
        if len(body) > bytes_max:
            raise _too_large(f"{len(body)} bytes", bytes_max)
        _check_budget(budget.held + len(body), budget)
        return body
    encoding = request.headers.get(CONTENT_ENCODING, "identity").strip().lower()
    if encoding not in ("identity", "gzip", "deflate", ""):
        raise TailraceError(
            ErrorKind.UNSUPPORTED, f"Content-Encoding '{encoding[:40]}' is not supported; send gzip, deflate or none"
        )
    length = request.content_length
    if length is not None and length > bytes_max:
        raise _too_large(f"{length} bytes", bytes_max)
    inflater = _Inflater(encoding) if encoding in ("gzip", "deflate") else None
    chunks: list[bytes] = []
    size = 0
    try:
        while chunk := await content.readany():
            if inflater is not None:
                chunk = await inflater.feed(chunk, bytes_max - size + 1)
            size += len(chunk)
            budget.held += len(chunk)
            if size > bytes_max:
                raise _too_large(f"more than {bytes_max} bytes came", bytes_max)
            _check_budget(budget.held, budget)
            chunks.append(chunk)
            if size > PACE_FROM_BYTES:
                # All long bodies together get one piece a turn of the loop: small requests wait for a single one.
                async with budget.turn:
                    await asyncio.sleep(0)
        if inflater is not None:
            inflater.finish()
    except (web.RequestPayloadError, HttpProcessingError, zlib.error) as e:
        raise BadRequest(
            f"the body cannot be read: {getattr(e, 'message', None) or e}; "
            f"send a whole {encoding} stream and the length that you announce"
        ) from e
    finally:
        budget.held -= size
    if size > JOIN_IN_THREAD_BYTES_MIN:
        return await asyncio.to_thread(b"".join, chunks)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _check_budget(held: int, budget: BodyBudget) -> None:
    if held > budget.bytes_max:
        text = f"this gateway is reading {held} bytes of bodies already; retry after 1 s"
        raise TailraceError(ErrorKind.QUEUE_FULL, text, retry_after_s=1)


class _Inflater:
    """A gzip or zlib stream to its bytes.

    aiohttp's own unpacks on the event loop, where one bomb holds up everybody, and takes a cut stream for whole.
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._wbits = 31 if encoding == "gzip" else 15
        self._stream: zlib._Decompress | None = None

    async def feed(self, data: bytes, bytes_max: int) -> bytes:
        """What `data` unpacks to; no more than `bytes_max` bytes are made. Raises zlib.error."""
        if len(data) <= THREAD_FROM_PACKED_BYTES:
            return self._feed(data, bytes_max)
        return await asyncio.to_thread(self._feed, data, bytes_max)

    def _feed(self, data: bytes, bytes_max: int) -> bytes:
        if self._stream is None:
            if self._encoding == "deflate" and data[0] & 0xF != 8:
                self._wbits = -15  # some clients send deflate without zlib's header
            self._stream = zlib.decompressobj(self._wbits)
        out = [self._stream.decompress(data, bytes_max)]
        size = len(out[0])
        while self._stream.eof and self._stream.unused_data and size < bytes_max:  # a further member
            rest = self._stream.unused_data
            self._stream = zlib.decompressobj(self._wbits)
            out.append(self._stream.decompress(rest, bytes_max - size))
            size += len(out[-1])
        return b"".join(out)

    def finish(self) -> None:
        """Raises zlib.error unless the stream has ended, with its checksum."""
        if self._stream is not None and not self._stream.eof:
            raise zlib.error(f"the {self._encoding} stream is cut off")


def _too_large(what: str, bytes_max: int) -> TailraceError:
    return TailraceError(
        ErrorKind.TOO_LARGE,
        f"the request body is too large: {what} (decompressed), this server takes {bytes_max}; "
        f"send fewer rows a request, or raise TAILRACE_BODY_BYTES_MAX",
    )


async def compress_if_asked(request: web.BaseRequest, reply: HttpReply) -> HttpReply:
    """Compress a reply if the client takes gzip or deflate. Never brotli, which Triton's clients announce but lack."""
    body = reply.body
    if len(body) < COMPRESS_BYTES_MIN:
        return reply
    accepted = {
        part.partition(";")[0].strip().lower()
        for part in request.headers.get("Accept-Encoding", "").split(",")
        if "q=0" not in part.replace(" ", "").replace("q=0.", "")
    }
    for coding, wbits in (("gzip", 31), ("deflate", 15)):
        if coding in accepted:
            if len(body) >= COMPRESS_IN_THREAD_BYTES_MIN:
                packed = await asyncio.to_thread(zlib.compress, body, 1, wbits)
            else:
                packed = zlib.compress(body, 1, wbits)
            return reply._replace(body=packed, headers=(*reply.headers, ("Content-Encoding", coding)))
    return reply
