"""A JSON body to typed values: whatever a client sends, it either decodes or is its fault, in words it can act on."""

import re
from typing import TypeVar

import msgspec
import numpy as np

from shared.errors import BadRequest

NESTING_MAX = 100
"""Triton's limit; far below Python's recursion limit."""

SHOWN_CHARS = 80
"""How much of a client's own text an error repeats."""

T = TypeVar("T")

# Only applied to text that decoded: there every string ends, so the pattern never backtracks.
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


def decode_json(decoder: msgspec.json.Decoder[T], text: bytes) -> T:
    """Decode `text`. Raises BadRequest for bad UTF-8, bad JSON, wrong types and nesting beyond NESTING_MAX."""
    check_utf8(text)
    try:
        value = decoder.decode(text)
    except RecursionError:
        raise _too_deep() from None
    except msgspec.ValidationError as e:
        raise BadRequest(f"the JSON has not the form of this request: {e}; '$' is the whole body") from None
    except msgspec.DecodeError as e:
        raise BadRequest(f"the body is not valid JSON: {e}; send one JSON object in UTF-8") from None
    # Counting is cheap and nearly always settles it; few requests have 100 brackets. `replace` looks for them with
    # memchr, which `count` of one character does not: half the time.
    brackets = 2 * len(text) - len(text.replace(b"[", b"")) - len(text.replace(b"{", b""))
    if brackets > NESTING_MAX and _depth(text) > NESTING_MAX:
        raise _too_deep()
    return value


def check_utf8(text: bytes) -> None:
    """Raises BadRequest unless `text` is UTF-8: msgspec does not look into what it skips or keeps raw."""
    if text.isascii():
        return
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as e:
        raise BadRequest(
            f"the JSON is not valid UTF-8: {e.reason} at byte {e.start}; "
            f"send text in UTF-8, and raw bytes as a binary tensor (binary_data_size)"
        ) from None


def shown(text: str) -> str:
    """`text`, which a client chose, quoted and shortened for an error message."""
    if len(text) <= SHOWN_CHARS:
        return repr(text)
    return f"{text[:SHOWN_CHARS]!r}... ({len(text)} characters)"


def short(value: object) -> str:
    """A number, or a list of them, that a client chose, shortened for an error message."""
    text = str(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}... ({len(text)} characters)"


def _depth(text: bytes) -> int:
    """The deepest nesting of arrays and objects in valid JSON."""
    marks = np.frombuffer(_STRING.sub(b"", text), dtype=np.uint8) | 0x20  # makes [ equal {, and ] equal }
    steps = (marks == ord("{")).astype(np.int8) - (marks == ord("}"))
    return int(np.cumsum(steps, dtype=np.int64).max(initial=0))


def _too_deep() -> BadRequest:
    return BadRequest(f"the JSON nests deeper than {NESTING_MAX} levels; send tensors flat or nested to their shape")
