"""Error kinds: whose fault, which HTTP status, which code on the wire, and whether a retry can help."""

from enum import Enum


class ErrorKind(Enum):
    """Every way a request can end without an answer: its code on the wire and in logs, its status, may a retry help."""

    BAD_REQUEST = ("bad_request", 400, False)
    NOT_FOUND = ("not_found", 404, False)
    METHOD_NOT_ALLOWED = ("method_not_allowed", 405, False)
    TOO_LARGE = ("too_large", 413, False)
    UNAUTHORIZED = ("unauthorized", 401, False)
    MISMATCH = ("mismatch", 422, False)  # an idempotency key that was used for something else
    QUEUE_FULL = ("queue_full", 429, True)
    RATE_LIMITED = ("rate_limited", 429, True)
    OVERLOADED = ("overloaded", 503, True)  # the wait foreseen is longer than the deadline
    CANCELLED = ("cancelled", 499, False)
    MODEL_ERROR = ("model_error", 500, False)
    CRASHED = ("crashed", 500, True)  # every attempt was lost with its worker
    INTERNAL = ("internal", 500, False)
    UNSUPPORTED = ("unsupported", 501, False)
    UNAVAILABLE = ("unavailable", 503, True)
    QUEUE_TIMEOUT = ("queue_timeout", 503, False)  # the Triton `timeout` parameter ran out: Triton answers 503
    DEADLINE = ("deadline", 504, False)  # the deadline of our header or of the server ran out

    def __init__(self, code: str, status: int, retryable: bool) -> None:
        self.code = code
        self.status = status
        self.retryable = retryable


BY_CODE = {kind.code: kind for kind in ErrorKind}


class TailraceError(Exception):
    """A failure with a kind; its text says what was expected, what came, and what to do."""

    def __init__(self, kind: ErrorKind, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retry_after_s = retry_after_s


class BadRequest(TailraceError):
    """The client's fault: it must change the request."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorKind.BAD_REQUEST, message)


class SettingsError(Exception):
    """One or more settings are wrong; the text lists all of them."""
