"""A gateway's log with the requests that a test needs."""

from pathlib import Path
from typing import Any

import msgspec

from shared.events import Envelope, Req

T0_NS = 77_000_000_000
T0_WALL_US = 1_796_029_200_000_000


def log_line(at_ms: float, *, clock: str = "clock-a", wall_ahead_us: int = 0, **fields: Any) -> bytes:
    """The line of a request that began `at_ms` after the story's begin and ended 5 ms later."""
    g0 = T0_NS + round(at_ms * 1e6)
    told = {"id": f"r-{at_ms}", "trace_id": "f" * 32, "span_id": "a" * 16, "route": "infer", "status": 200}
    more = {"g0": g0, "g8": g0 + 5_000_000, "model": "m", "version": "1", "rows": 1, "bytes_in": 100}
    record = Req(**{**told, **more, **fields})  # type: ignore[arg-type]
    envelope = Envelope(
        1, "req", "host", clock, 1, "gateway", clock, 0, g0 + 5_000_000,
        T0_WALL_US + round(at_ms * 1e3) + 5_000 + wall_ahead_us,
    )  # fmt: skip
    head = msgspec.to_builtins(envelope)
    del head["t"]  # the record begins with it
    return msgspec.json.encode(head | msgspec.to_builtins(record)) + b"\n"


def write_log(folder: Path, *lines: bytes, name: str = "gateway-a") -> Path:
    """A folder with these lines as the log of one gateway."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.jsonl").write_bytes(b"".join(lines))
    return folder
