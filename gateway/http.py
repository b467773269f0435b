"""What every request has in common: stamps around it, the headers of its reply, `{"error": ...}` for every failure."""

import asyncio
import re
from collections.abc import Callable
from typing import TypeVar

from aiohttp import web

from gateway import trace
from gateway.call import CLIENT_GONE, Call
from gateway.reply import HttpReply, error_reply
from gateway.routes import Routes
from gateway.send import send
from shared import clock, humanlog
from shared.errors import BadRequest, ErrorKind, TailraceError
from shared.eventlog import EventLog
from shared.ids import RequestIds
from shared.vitals import LoopWatch

LABEL = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,127}")
E = TypeVar("E", bound=BaseException)


class Http:
    """Answers requests by the routes. `serve` is the handler of an aiohttp low-level server."""

    def __init__(
        self, routes: Routes, log: EventLog, watch: LoopWatch, own_clock: str, inflight: Callable[[], int]
    ) -> None:
        self._routes = routes
        self._log = log
        self._watch = watch
        self._own_clock = own_clock
        self._inflight = inflight
        self._ids = RequestIds()
        self.draining = False
        """No connection outlives its next response."""

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request, from its first line to the last byte of its reply."""
        g0 = clock.now_ns()
        call = Call(
            id=self._ids.next(), trace=trace.begin(request.headers), g0=g0, g0_lag=self._watch.lag_ns,
            inflight=self._inflight(),
        )  # fmt: skip
        humanlog.about.set((call.id, call.trace.trace_id))
        status = CLIENT_GONE.kind.status
        try:
            reply = await self._answer(request, call)
            if self.draining:
                reply = reply._replace(close=True)
            call.g7 = clock.now_ns()
            lines = self._header_lines(call)
            status = reply.status
            # Written here and not after the return, so that the last stamp is of the last byte.
            try:
                response = await send(request, reply, lines)
            except (asyncio.CancelledError, ConnectionError):
                call.error = call.error or CLIENT_GONE
                raise
            call.bytes_out = len(reply.body)
            return response
        finally:
            call.g8 = clock.now_ns()
            if call.is_logged:
                self._log.write(call.record(status))

    async def _answer(self, request: web.BaseRequest, call: Call) -> HttpReply:
        try:
            if label := request.headers.get("x-request-id"):
                if not LABEL.fullmatch(label):
                    text = f"x-request-id has {len(label)} characters; send 1 to 128 printable ASCII characters"
                    raise BadRequest(text)
                call.label = label
            route, call.values = self._routes.match(request.method, request.raw_path)
            call.route = route.name
            return await route.handler(request, call)
        except asyncio.CancelledError:
            call.error = CLIENT_GONE
            raise
        except TailraceError as e:
            call.error = _without_frames(e)
        except Exception as e:
            humanlog.get().exception("a handler failed")
            text = f"internal error ({type(e).__name__}); the gateway's log has request {call.id}"
            _without_frames(e)
            call.error = TailraceError(ErrorKind.INTERNAL, text)
        reply = error_reply(call.error, call.route)
        if call.error.kind is ErrorKind.METHOD_NOT_ALLOWED:
            reply = reply._replace(headers=(("Allow", self._routes.allowed(request.raw_path)),))
        return reply

    def _header_lines(self, call: Call) -> str:
        """The header lines that every reply has, as they go onto the wire."""
        return (
            f"x-request-id: {call.label or call.id}\r\nx-tailrace-request-id: {call.id}\r\n"
            f"traceparent: {call.trace.traceparent}\r\nServer-Timing: {call.server_timing(self._own_clock)}\r\n"
        )


def _without_frames(error: E) -> E:
    """Let go of the frames that an error went through: they hold the body, and the cycle would keep it for long."""
    at: BaseException | None = error
    while at is not None:
        following = at.__cause__ or at.__context__
        at.__traceback__ = at.__cause__ = at.__context__ = None
        at = following
    return error


class JsonErrors(web.RequestHandler):
    """aiohttp's own failures (a header line too long, not HTTP at all) in our form."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that never reached `Http.serve`."""
        if request.writer.output_size > 0:
            raise ConnectionError("part of the response has been sent already")
        text = message or (str(exc) if status < 500 and exc else "internal error")
        kind = ErrorKind.BAD_REQUEST if status < 500 else ErrorKind.INTERNAL
        first_line = text.strip().split("\n", 1)[0]
        reply = error_reply(TailraceError(kind, f"this is not a request that can be served: {first_line}"))
        began = trace.begin({})
        headers = {
            "Content-Type": reply.content_type,
            "traceparent": began.traceparent,
            "x-request-id": began.trace_id,
            "Server-Timing": "total;dur=0",
        }
        response = web.Response(body=reply.body, status=reply.status, headers=headers)
        response.force_close()
        return response


class Server(web.Server):
    """A low-level server whose connections answer every failure in JSON."""

    def __call__(self) -> web.RequestHandler:
        """The protocol of a new connection."""
        return JsonErrors(self, loop=self._loop, **self._kwargs)
