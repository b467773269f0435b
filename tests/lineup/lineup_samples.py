"""Small truths, verdicts and logs for the tests of the lineup."""

from pathlib import Path
from typing import Any

from bench.lineup.adapter import Finding, Verdict
from bench.lineup.labels import Labels, Window
from bench.log_process import WALL_US, HostClock, Process, S
from shared.events import Evt, Hello, Req

S_US = 1_000_000
BEGAN_US = WALL_US + 5 * S_US
"""When the fault of a sample begins."""


def labels(**fields: Any) -> Labels:
    """The truth about a run of ten seconds whose last five are bad."""
    rise = {"before_ms": 20.0, "during_ms": 120.0}
    told: dict[str, Any] = {
        "run": "r1",
        "scenario": "b1_collections",
        "scenario_sha256": "0" * 64,
        "cause": "B1",
        "family": "B",
        "mechanism": "collections",
        "expected": "B1",
        "lookalikes": [],
        "segments": ["stream_wait", "post"],
        "started_unix_us": BEGAN_US,
        "ended_unix_us": BEGAN_US + 5 * S_US,
        "window": Window(
            warm_up_us=WALL_US,
            baseline_us=WALL_US,
            fault_us=BEGAN_US,
            recovery_us=BEGAN_US + 5 * S_US,
            end_us=BEGAN_US + 5 * S_US,
        ),
        "period_s": 0.0,
        "culprit_kind": "worker",
        "culprit_ids": ["w-1"],
        "processes": ["w-1"],
        "episodes": [],
        "strength": {},
        "share": 1.0,
        "background": {},
        "seed": 1,
        "pair": "p1",
        "twin": False,
        "impact": {"figure": "p99", "p50": rise, "p99": rise},
        "machine": {},
        "flags": [],
        "facts": {},
    }
    return Labels(**(told | fields))


def verdict(*causes: str, confidence: float = 0.9, **fields: Any) -> Verdict:
    """A verdict that names these causes, the first one with `fields`."""
    first = [Finding(cause, confidence, cause[:1], **fields) for cause in causes[:1]]
    return Verdict((*first, *(Finding(cause, 0.1, cause[:1]) for cause in causes[1:])))


MS = 1_000_000
CLOCK = HostClock("clock-a", "host-a", 5_000 * S, 0)
STAMPS_MS = {
    "g0": 0.0, "g1": 0.3, "g2": 1.2, "g3": 1.4, "g4": 1.8, "w0": 1.5, "w1": 2.0, "w2": 2.1, "w3": 6.1, "w4": 6.2,
    "w5": 7.2, "w6": 16.2, "w7": 17.0, "w8": 17.1, "g5": 17.6, "g6": 17.7, "g7": 18.0, "g8": 20.0,
}  # fmt: skip
"""A request of 20 ms, about half of it in forward."""


def write_log(folder: Path, *, seconds: int = 20, slow_from_s: int = 10, gc: bool = True) -> None:
    """A log in which every fourth request is ten times as slow from `slow_from_s` on, behind a collection if `gc`."""
    folder.mkdir(parents=True, exist_ok=True)
    gateway = Process(folder, "gateway", "gw-1", 1, CLOCK, 1 << 30)
    worker = Process(folder, "worker", "w-1", 2, CLOCK, 1 << 30)
    for process in (gateway, worker):
        process.write(0, Hello("0.1.0", "3.11.7", "6.4.0"))
    for i in range(seconds * 10):
        begun_ns = S + i * 100 * MS
        is_slow = begun_ns >= slow_from_s * S and i % 4 == 0
        at = {name: CLOCK.at(begun_ns + int(ms * MS * (10 if is_slow else 1))) for name, ms in STAMPS_MS.items()}
        one = Req(
            f"id-{i:05}", "f" * 32, "a" * 16, "infer", 200, label=f"label-{i}", model="reader", version="1",
            worker="w-1", worker_clock=CLOCK.name, attempt=1, batch_id=f"w-1.{i}", batch_rows=1, batch_requests=1,
            close_reason="idle", rows=1, bytes_in=300, **at,
        )  # fmt: skip
        gateway.write(begun_ns + 200 * MS, one)
        if is_slow and gc:
            start_ns, end_ns = CLOCK.at(begun_ns + 10 * MS), CLOCK.at(begun_ns + 150 * MS)
            worker.write(begun_ns + 150 * MS, Evt("gc", start_ns, end_ns, {"generation": 2, "collected": 0}))
    for process in (gateway, worker):
        process.flush(1 << 62)
