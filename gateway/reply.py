"""What a handler gives back: a response as a plain value, and the form of every failure."""

from typing import NamedTuple

import orjson

from gateway import openai
from gateway.oip_reply import RenderedReply
from shared.errors import ErrorKind, TailraceError

JSON = "application/json"


class HttpReply(NamedTuple):
    """A response. `close`: the connection ends with it."""

    body: bytes = b""
    status: int = 200
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()
    close: bool = False


def json_reply(value: object) -> HttpReply:
    """A 200 with `value` as JSON."""
    return HttpReply(orjson.dumps(value))


def infer_reply(rendered: RenderedReply) -> HttpReply:
    """A 200 of the Open Inference Protocol."""
    if rendered.json_length is None:
        return HttpReply(rendered.body, content_type=rendered.content_type)
    headers = (("Inference-Header-Content-Length", str(rendered.json_length)),)
    return HttpReply(rendered.body, content_type=rendered.content_type, headers=headers)


def error_reply(error: TailraceError, route: str = "") -> HttpReply:
    """The reply of a failure: `{"error": text}`, or OpenAI's form on its routes."""
    body = openai.render_error(error) if route == "embeddings" else orjson.dumps({"error": error.message})
    headers: list[tuple[str, str]] = []
    if error.retry_after_s is not None or error.kind.status in (429, 503):
        headers.append(("Retry-After", str(error.retry_after_s or 1)))
    if error.kind is ErrorKind.UNAUTHORIZED:
        headers.append(("WWW-Authenticate", "Bearer"))
    if error.kind is ErrorKind.UNSUPPORTED:
        headers.append(("Accept-Encoding", "gzip, deflate"))
    # Rather than read the rest of a body that is too large.
    return HttpReply(body, error.kind.status, JSON, tuple(headers), close=error.kind is ErrorKind.TOO_LARGE)
