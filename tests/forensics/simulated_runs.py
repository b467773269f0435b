"""Figures of runs that never ran, for the tests of `compare`: no logs, so there can be many."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from forensics.compare import Comparison, compare
from forensics.run_figures import Run
from forensics.segments_sql import SEGMENTS
from forensics.statistics.quantiles import allocate

MS = 1_000_000
FORWARD, QUEUE = SEGMENTS.index("forward"), SEGMENTS.index("stream_wait")


def run(
    seed: int, *, at_s: int = 0, forward: float = 1.0, large: float = 0.2, requests: int = 2_000, **changes: Any
) -> Run:
    """A run of small requests and a share of `large` ones, whose forward pass takes five times as long; all passes are
    stretched by `forward`."""
    rng = np.random.default_rng(seed)
    kinds = (rng.random(requests) < large).astype(np.int64)
    segments = np.zeros((requests, len(SEGMENTS)), np.int64)
    segments[:, QUEUE] = rng.lognormal(0.5, 0.5, requests) * MS
    segments[:, FORWARD] = np.where(kinds, 50, 10) * forward * rng.lognormal(0, 0.1, requests) * MS
    order = np.argsort(segments.sum(axis=1))
    e2e = segments.sum(axis=1)[order]
    parts = allocate(segments.sum(axis=1), dict(zip(SEGMENTS, segments.T, strict=True)), 0.99).parts_ns
    told: dict[str, Any] = {
        "name": f"run {seed}", "first_us": at_s * 1_000_000, "last_us": (at_s + 10) * 1_000_000, "e2e_ns": e2e,
        "kinds": kinds[order], "kind_names": ["small", "large"], "requests": requests, "answered_meanwhile": requests,
        "errors": 0, "left": 0, "parts_ns": {0.99: np.array([*parts.values()])},
    }  # fmt: skip
    return Run(**(told | changes))


def sides(count: int = 5, *, interleaved: bool = True, b: dict[str, Any] | None = None) -> tuple[list[Run], list[Run]]:
    """So many runs a side, in turns; `b` is what differs in B."""
    apart = 20 if interleaved else 1_000
    of_a = [run(i, at_s=40 * i) for i in range(count)]
    return of_a, [run(100 + i, at_s=40 * i + apart, **(b or {})) for i in range(count)]


def compared(a: Sequence[Run], b: Sequence[Run], **options: Any) -> Comparison:
    """The comparison, with names for the sides."""
    return compare(a, b, names=("old", "new"), **options)
