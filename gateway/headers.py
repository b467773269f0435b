"""What a client says of its request in headers of ours, read to values. Pure; each failure is a BadRequest."""

from collections.abc import Mapping

from multidict import istr

from shared.errors import BadRequest, ErrorKind
from shared.keys import HIGH, LOW, NORMAL

# istr: what every request is asked for is not folded to small letters every time.
PRIORITY, TIMEOUT_MS = istr("x-request-priority"), istr("x-request-timeout-ms")
IDEMPOTENCY_KEY, PREFER = istr("Idempotency-Key"), istr("Prefer")
_PRIORITIES = {"1": HIGH, "high": HIGH, "2": NORMAL, "normal": NORMAL, "3": LOW, "low": LOW}
KEY_MAX = 255


def priority_of(headers: Mapping[str, str], parameter: int = 0) -> int:
    """The lane: by x-request-priority, else by Triton's parameter `priority` (1 the highest, 0 the default)."""
    header = headers.get(PRIORITY)
    if header is None:
        return min(parameter, LOW) if parameter else NORMAL
    try:
        return _PRIORITIES[header.strip().lower()]
    except KeyError:
        raise BadRequest(f"x-request-priority is '{header[:40]}'; send 1 or high, 2 or normal, 3 or low") from None


def budget_of(headers: Mapping[str, str], timeout_us: int | None, longest_s: float) -> tuple[int, ErrorKind]:
    """Nanoseconds until the deadline, and the error it ends with: the shortest of the three limits decides."""
    budget_ns, late = int(longest_s * 1e9), ErrorKind.DEADLINE
    if timeout_us is not None and timeout_us * 1000 < budget_ns:
        budget_ns, late = timeout_us * 1000, ErrorKind.QUEUE_TIMEOUT
    header = headers.get(TIMEOUT_MS)
    if header is not None:
        try:
            timeout_ms = float(header)
            if not 0 < timeout_ms < 1e12:
                raise ValueError
        except ValueError:
            raise BadRequest(f"x-request-timeout-ms is '{header[:40]}'; send milliseconds, a number above 0") from None
        if timeout_ms * 1e6 < budget_ns:
            budget_ns, late = int(timeout_ms * 1e6), ErrorKind.DEADLINE
    return budget_ns, late


def idempotency_key_of(headers: Mapping[str, str]) -> str:
    """The Idempotency-Key; empty without one."""
    key = headers.get(IDEMPOTENCY_KEY)
    if key is None:
        return ""
    if not (0 < len(key) <= KEY_MAX and key.isascii() and key.isprintable()):
        raise BadRequest(f"Idempotency-Key has {len(key)} characters; send 1 to {KEY_MAX} printable ASCII characters")
    return key


def preferences_of(headers: Mapping[str, str]) -> dict[str, str]:
    """The preferences of the Prefer header (RFC 7240) with their values; those we do not know do no harm."""
    header = headers.get(PREFER)
    if header is None:
        return {}
    preferences: dict[str, str] = {}
    for part in header.split(","):
        name, _, value = part.partition(";")[0].partition("=")
        preferences.setdefault(name.strip().lower(), value.strip().strip('"'))
    return preferences
