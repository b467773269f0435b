"""A reply onto the connection. The common one, small and whole, leaves in one write of bytes made here.

aiohttp's own response is built for everything a response may be: headers as a multidict, cookies, ranges, chunks. For a
small 200 to an HTTP/1.1 client that stays connected none of it is needed; measured, docs/decisions.md. All others go
through `web.Response`.
"""

from email.utils import formatdate
from functools import lru_cache

from aiohttp import HttpVersion11, web

from gateway.reply import HttpReply
from shared import clock

WHOLE_BYTES_MAX = 16 * 1024
"""A longer body may have to wait for a slow reader, which aiohttp does."""


async def send(request: web.BaseRequest, reply: HttpReply, lines: str) -> web.StreamResponse:
    """Send a reply. Returns what aiohttp wants back; raises ConnectionError.

    `lines` are header lines beside those of the reply, each "name: value" and CR LF; no value may hold a line break.
    """
    body = reply.body
    transport = request.transport
    if (
        reply.status == 200
        and not reply.close
        and len(body) <= WHOLE_BYTES_MAX
        and request.keep_alive
        and request.version == HttpVersion11
        and request.method != "HEAD"
        # A client that sends on and never reads must wait, which aiohttp sees to.
        and (transport is None or transport.get_write_buffer_size() <= WHOLE_BYTES_MAX)
    ):
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has gone")
        own = "".join([f"{name}: {value}\r\n" for name, value in reply.headers]) if reply.headers else ""
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: {reply.content_type}\r\nContent-Length: {len(body)}\r\n"
            f"Date: {_date(clock.wall_us() // 1_000_000)}\r\n{lines}{own}\r\n"
        )
        transport.write(head.encode("latin-1") + body)
        return _SENT
    parts = [line.partition(": ") for line in lines.split("\r\n") if line]
    headers = [("Content-Type", reply.content_type), *((name, value) for name, _, value in parts), *reply.headers]
    response = web.Response(body=body, status=reply.status, headers=headers)
    if reply.close:
        response.force_close()
    await response.prepare(request)
    await response.write_eof()
    return response


@lru_cache(1)
def _date(unix_s: int) -> str:
    return formatdate(unix_s, usegmt=True)


class _Sent(web.StreamResponse):
    """Tells aiohttp that all is written already, and that the connection stays."""

    @property
    def keep_alive(self) -> bool:
        return True

    async def prepare(self, request: web.BaseRequest) -> None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return None


_SENT = _Sent()
