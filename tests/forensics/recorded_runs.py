"""Logs of runs whose latency is known, for the tests of `compare`, `ledger` and `correlate`."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from forensics_logbook import HELLO, MS, Logbook, batch, ns, req, wreq

from shared.events import Bye, Cfg, Req, Res

AFTER_FORWARD = ("w6", "w7", "w8", "g5", "g6", "g7", "g8")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the requests of a run are: one every `gap_ms`, of 10 ms but for its forward pass, which takes longer by
    about `forward_ms` times `slowness` of the request, a log-normal of sigma `spread`."""

    requests: int = 120
    at_s: float = 0.0
    gap_ms: float = 20.0
    forward_ms: float = 20.0
    spread: float = 0.3
    size_of: Callable[[random.Random], int] = lambda r: 1_000
    slowness: Callable[[int], float] = lambda size: 1.0
    errors: int = 0
    versions: Sequence[str] = ("1",)
    """Taken in turns."""
    steal: float = 0.0
    config: dict[str, Any] | None = None
    label: str = ""
    seed: int = 0


def write_run(folder: Path, recipe: Recipe | None = None, **changes: Any) -> list[Req]:
    """Write the logs of a run; returns its requests. A worker without end answers every request alone."""
    recipe = recipe or Recipe(**changes)
    rng = random.Random(recipe.seed)
    book = Logbook(folder)
    requests = [_request(recipe, rng, i) for i in range(recipe.requests)]
    at_ms = recipe.at_s * 1_000
    for proc, inst in (("gateway", "gw-1"), ("worker", "w-1")):
        book.write(proc, inst, HELLO, at_ms=at_ms - 10)
        book.write(proc, inst, Cfg(recipe.config or {"lease_s": 3}), at_ms=at_ms - 9)
    ended_ms = at_ms
    beat_ms = at_ms
    for r in sorted(requests, key=lambda r: r.g8):
        ended_ms = (r.g8 - ns(0)) / MS
        while beat_ms < ended_ms:
            for proc, inst in (("gateway", "gw-1"), ("worker", "w-1")):
                book.write(proc, inst, _sample(recipe.steal), at_ms=beat_ms)
            beat_ms += 1_000
        book.write("gateway", "gw-1", r, at_ms=ended_ms)
        if r.w8:
            book.write("worker", "w-1", wreq(r, cost=1), at_ms=ended_ms)
            pass_ms = [(at - ns(0)) / MS for at in (r.w3, r.w7)]
            record = batch(r.batch_id, start_ms=pass_ms[0], end_ms=pass_ms[1], members=[r.id])
            stamps = {name: getattr(r, name) for name in ("w3", "w4", "w5", "w6", "w7")}
            book.write("worker", "w-1", msgspec.structs.replace(record, **stamps), at_ms=ended_ms)
    for proc, inst in (("gateway", "gw-1"), ("worker", "w-1")):
        book.write(proc, inst, Bye("stopped"), at_ms=ended_ms + 1)
    return requests


def _request(recipe: Recipe, rng: random.Random, i: int) -> Req:
    size = recipe.size_of(rng)
    begun_ms = recipe.at_s * 1_000 + i * recipe.gap_ms
    longer = round(recipe.forward_ms * recipe.slowness(size) * rng.lognormvariate(0, recipe.spread) * MS)
    request_id = f"{recipe.seed:04d}-{recipe.at_s:.0f}-{i:06d}"
    about = {
        "route": "infer", "bytes_in": size, "batch_id": f"b{i}", "batch_requests": 1, "batch_rows": 1,
        "version": recipe.versions[i % len(recipe.versions)], "label": recipe.label and f"{recipe.label}-{i}",
        "tokens_useful": 0, "tokens_padded": 0,
    }  # fmt: skip
    r = req(request_id, begun_ms=begun_ms, stretch=0.1, **about)
    if i < recipe.errors:
        nothing = dict.fromkeys((*(f"w{k}" for k in range(9)), "g3", "g4", "g5"), 0)
        refused = {"status": 429, "error_code": "queue_full", "worker": "", "worker_clock": "", "batch_id": ""}
        return msgspec.structs.replace(r, **nothing, **refused)
    return msgspec.structs.replace(r, **{name: getattr(r, name) + longer for name in AFTER_FORWARD})


def _sample(steal: float) -> Res:
    return Res(1_000 * MS, 50.0, [50.0], [5.0], [0.0], [100 * steal], 300 << 20, 9)
