"""What every request has in common: stamps around it, the headers of its reply, `{"error": ...}` for every failure."""

import asyncio
import re
from collections.abc import Callable
from typing import TypeVar

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway import openai, trace
from gateway.call import CALL, CLIENT_GONE, Call
from shared import clock, humanlog
from shared.errors import BadRequest, ErrorKind, TailraceError
from shared.eventlog import EventLog
from shared.ids import RequestIds
from shared.vitals import LoopWatch

LABEL = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,127}")
KIND_OF_STATUS = {404: ErrorKind.NOT_FOUND, 405: ErrorKind.METHOD_NOT_ALLOWED, 413: ErrorKind.TOO_LARGE}


def error_body(error: TailraceError, route: str = "") -> bytes:
    """The JSON body of a failure: the text alone, or OpenAI's form on its routes."""
    return openai.render_error(error) if route == "embeddings" else orjson.dumps({"error": error.message})


def error_response(error: TailraceError, route: str = "") -> web.Response:
    """The reply of a failure."""
    response = web.Response(status=error.kind.status, body=error_body(error, route), content_type="application/json")
    if error.kind is ErrorKind.TOO_LARGE:
        response.force_close()  # rather than read the rest of it
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)
    if error.kind is ErrorKind.UNSUPPORTED:
        response.headers["Accept-Encoding"] = "gzip, deflate"
    return response


def make_middleware(
    log: EventLog, ids: RequestIds, watch: LoopWatch, own_clock: str, inflight: Callable[[], int]
) -> Middleware:
    """The outermost middleware."""
    human = humanlog.get()

    @web.middleware
    async def around(request: web.Request, handler: Handler) -> web.StreamResponse:
        g0 = clock.now_ns()
        label = request.headers.get("x-request-id", "")
        call = Call(
            id=ids.next(),
            label=label if LABEL.fullmatch(label) else "",
            trace=trace.begin(request.headers),
            route=_route(request),
            g0=g0,
            g0_lag=watch.lag_ns,
            inflight=inflight(),
        )
        request[CALL] = call
        humanlog.about.set((call.id, call.trace.trace_id))
        status = 499
        try:
            try:
                if label and not call.label:
                    raise BadRequest(
                        f"x-request-id has {len(label)} characters; send 1 to 128 printable ASCII characters"
                    )
                response = await handler(request)
            except asyncio.CancelledError:
                call.error = CLIENT_GONE
                raise
            except TailraceError as e:
                call.error = _without_frames(e)
            except web.HTTPException as e:
                call.error = _of_http(request, e)
                if e.status < 400:
                    raise
            except Exception as e:
                human.exception("a handler failed")
                call.error = TailraceError(
                    ErrorKind.INTERNAL, f"internal error ({type(e).__name__}); the gateway's log has request {call.id}"
                )
                _without_frames(e)
            if call.error is not None:
                response = error_response(call.error, call.route)
            call.g7 = clock.now_ns()
            headers = response.headers
            headers["x-request-id"] = call.label or call.id
            headers["x-tailrace-request-id"] = call.id
            headers["traceparent"] = call.trace.traceparent
            headers["Server-Timing"] = call.server_timing(own_clock)
            status = response.status
            # Written here and not after the return, so that the last stamp is of the last byte.
            try:
                await response.prepare(request)
                await response.write_eof()
            except (asyncio.CancelledError, ConnectionError):
                call.error = call.error or CLIENT_GONE
                raise
            call.bytes_out = response.body_length
            return response
        finally:
            call.g8 = clock.now_ns()
            if call.is_logged:
                log.write(call.record(status))

    return around


E = TypeVar("E", bound=BaseException)


def _without_frames(error: E) -> E:
    """Let go of the frames that an error went through: they hold the body, and the cycle would keep it for long."""
    at: BaseException | None = error
    while at is not None:
        following = at.__cause__ or at.__context__
        at.__traceback__ = at.__cause__ = at.__context__ = None
        at = following
    return error


def _route(request: web.Request) -> str:
    """What the log calls the request: a route's short name, or its pattern; never what the client typed."""
    route = request.match_info.route
    if route.resource is None:
        return "unknown"
    return route.name or f"{request.method} {route.resource.canonical}"


def _of_http(request: web.Request, e: web.HTTPException) -> TailraceError:
    kind = KIND_OF_STATUS.get(e.status, ErrorKind.BAD_REQUEST if e.status < 500 else ErrorKind.INTERNAL)
    if isinstance(e, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(e.allowed_methods))
        return TailraceError(kind, f"{request.method} is not allowed on {request.path}; allowed: {allowed}")
    if e.status == 404:
        return TailraceError(kind, f"there is nothing at {request.path}; GET /v2 tells what this server is")
    return TailraceError(kind, e.text or e.reason)


class JsonErrors(web.RequestHandler):
    """aiohttp's own failures (a header line too long, not HTTP at all) in our form, and in our log's words."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that never reached the application."""
        if request.writer.output_size > 0:
            raise ConnectionError("part of the response has been sent already")
        text = message or (str(exc) if status < 500 and exc else "internal error")
        kind = ErrorKind.BAD_REQUEST if status < 500 else ErrorKind.INTERNAL
        first_line = text.strip().split("\n", 1)[0]
        error = TailraceError(kind, f"this is not a request that can be served: {first_line}")
        response = error_response(error)
        call = trace.begin({})
        response.headers["traceparent"] = call.traceparent
        response.headers["x-request-id"] = call.trace_id
        response.headers["Server-Timing"] = "total;dur=0"
        response.force_close()
        return response


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        return JsonErrors(self, loop=self._loop, **self._kwargs)


class Runner(web.AppRunner):
    """An AppRunner whose connections answer every failure in JSON."""

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        # The application builds its server itself and offers no other place to name the handler's class.
        server.__class__ = _Server
        return server
