"""What a client is told whose request was not taken, or came to its deadline."""

import math

from gateway.tenants import Tenant
from shared.errors import ErrorKind, TailraceError
from shared.keys import Queue


def late_error(kind: ErrorKind) -> TailraceError:
    """The error of a request whose deadline passed."""
    return TailraceError(
        kind,
        "the request's deadline passed before an answer was ready, and it was withdrawn; "
        "send a longer `timeout` (microseconds) or x-request-timeout-ms, or fewer requests at once",
    )


def stopping_error() -> TailraceError:
    """The error of whoever waits behind an idempotency key at a gateway that stops."""
    text = "the gateway is stopping; the request goes on: send it again with the same key, after 1 s"
    return TailraceError(ErrorKind.UNAVAILABLE, text, retry_after_s=1)


def refusal(queue: Queue, tenant: Tenant, status: str, detail: str, *, left_s: float) -> TailraceError:
    """Why Redis did not take a request, by the status that accept.lua gave; `left_s` until its deadline."""
    match status:
        case "FULL":
            text = f"the queue of {queue} is full: {detail} requests are queued or running; retry after 1 s"
            return TailraceError(ErrorKind.QUEUE_FULL, text, retry_after_s=1)
        case "BYTES":
            text = f"the queue of {queue} is full: it holds {detail} bytes of payloads; retry after 1 s"
            return TailraceError(ErrorKind.QUEUE_FULL, text, retry_after_s=1)
        case "TENANT":
            text = f"{tenant} has {detail} requests of {queue} queued or running, which is its limit; retry after 1 s"
            return TailraceError(ErrorKind.QUEUE_FULL, text, retry_after_s=1)
        case "HOPELESS":
            wait_s = int(detail) / 1e6
            after_s = max(1, math.ceil(wait_s - left_s))
            text = (
                f"the queue of {queue} is {wait_s:.1f} s long at its workers' best pace, and the request's deadline is "
                f"in {left_s:.1f} s: it would be late for certain; retry after {after_s} s, or send a longer timeout"
            )
            return TailraceError(ErrorKind.OVERLOADED, text, retry_after_s=after_s)
        case "OOM":
            text = "Redis is out of memory and takes no new requests; retry after 1 s"
            return TailraceError(ErrorKind.UNAVAILABLE, text, retry_after_s=1)
        case "MISMATCH":
            text = (
                f"the Idempotency-Key was used before for another body, by request {detail}; "
                f"send the same body with it, or a new key"
            )
            return TailraceError(ErrorKind.MISMATCH, text)
        case _:
            return TailraceError(ErrorKind.INTERNAL, f"Redis answered {status} {detail} to a hand-over")
