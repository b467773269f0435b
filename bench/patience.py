"""How long requests waited although a device could have taken them: `python -m bench.patience LOGS --model minilm`.

A batch that is chosen by cost may leave an older request behind, but only for its patience: "no request waits more than
its patience plus one batch". This computes it for each request of a run from the events of its workers. A device
could have taken a request at the first instant at which

- it had been handed over (g3),
- all older requests that went before it had gone: these were first, and waiting for them is what queues are for, and
- a device was free: whatever was running had ended.

What went by from then until its own pass was sealed (w3) it waited because others were preferred, because it lay with
a worker that was busy, or on its way there. Pure, but for `of_logs`.
"""

import argparse
from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench.errors import CannotMeasure
from forensics.store import open_store
from worker.models import manifest
from worker.models.interface import ModelConfig

PATIENCE_MS = ModelConfig.patience_ms
"""Of a model that does not say."""

REQUESTS = """
SELECT id, worker, g3, w3 FROM attempts
WHERE model = ? AND outcome = 'DONE' AND attempt = 1 AND w3 > 0 ORDER BY g3
"""
PASSES = "SELECT worker, w3, w7 FROM batches"


class Request(NamedTuple):
    """A request: when it was handed over, and when its pass was sealed. All instants are ns of one clock."""

    id: str
    handed_over_ns: int
    sealed_ns: int


class Pass(NamedTuple):
    """What kept a device: from when it was sealed until its outputs were there."""

    worker: str
    sealed_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True)
class Patience:
    """What was found. `waits_ns` by request id, in the order of hand-over; `longest_pass_ns` of all passes."""

    waits_ns: dict[str, int]
    longest_pass_ns: int
    patience_ns: int

    @property
    def worst(self) -> tuple[str, int]:
        """The request that waited longest, and how long, ns."""
        return max(self.waits_ns.items(), key=lambda item: item[1], default=("", 0))

    @property
    def beyond_ns(self) -> int:
        """By how much the longest wait went beyond the patience; negative when it did not."""
        return self.worst[1] - self.patience_ns

    @property
    def broken_count(self) -> int:
        """Requests that waited more than their patience and the longest pass."""
        return sum(ns > self.patience_ns + self.longest_pass_ns for ns in self.waits_ns.values())

    def to_json(self) -> dict[str, Any]:
        """The figures, ready for JSON."""
        return {
            "requests": len(self.waits_ns),
            "patience_ms": self.patience_ns / 1e6,
            "longest_wait_ms": self.worst[1] / 1e6,
            "longest_wait_id": self.worst[0],
            "beyond_patience_ms": self.beyond_ns / 1e6,
            "longest_pass_ms": self.longest_pass_ns / 1e6,
            "beyond_patience_and_longest_pass": self.broken_count,
        }

    def __str__(self) -> str:
        """In one line."""
        if not self.waits_ns:
            return "patience: no request to look at"
        name, longest_ns = self.worst
        return (
            f"patience: of {len(self.waits_ns):,} requests none waited more than {longest_ns / 1e6:.1f} ms since a "
            f"device could have taken it ({name}): its patience of {self.patience_ns / 1e6:.0f} ms "
            f"{self.beyond_ns / 1e6:+.1f} ms; the longest pass took {self.longest_pass_ns / 1e6:.1f} ms; "
            f"{self.broken_count} waited more than patience and longest pass"
        )


def look(requests: Iterable[Request], passes: Sequence[Pass], patience_ns: int) -> Patience:
    """The wait of each request; `requests` of one queue in the order of hand-over, `passes` of the workers it has.

    A request that left in the same pass as an older one has not waited for anything but that one.
    """
    devices = _by_device(passes)
    sealed: list[int] = []
    """Of the older requests, sorted."""
    waits_ns: dict[str, int] = {}
    for r in requests:
        at = bisect_right(sealed, r.sealed_ns)
        nobody_older_ns = max(r.handed_over_ns, sealed[at - 1] if at else 0)
        waits_ns[r.id] = max(0, r.sealed_ns - min((_free_ns(d, nobody_older_ns) for d in devices), default=r.sealed_ns))
        insort(sealed, r.sealed_ns)
    return Patience(waits_ns, max((p.ended_ns - p.sealed_ns for p in passes), default=0), patience_ns)


def _by_device(passes: Iterable[Pass]) -> list[tuple[list[int], list[int]]]:
    """For each worker when its passes were sealed and when they ended, ascending."""
    devices: dict[str, list[Pass]] = {}
    for p in sorted(passes, key=lambda p: p.sealed_ns):
        devices.setdefault(p.worker, []).append(p)
    return [([p.sealed_ns for p in of], [p.ended_ns for p in of]) for of in devices.values()]


def _free_ns(device: tuple[list[int], list[int]], at_ns: int) -> int:
    """When a device could first take something from `at_ns` on: at the end of the pass that runs then."""
    sealed, ended = device
    running = bisect_right(sealed, at_ns) - 1
    return max(at_ns, ended[running]) if running >= 0 else at_ns


def of_logs(paths: Iterable[Path], model: str, patience_ns: int) -> Patience:
    """What the logs of one machine say of a model. Raises LogError, CannotMeasure."""
    with open_store(paths) as store:
        clocks = store.value("SELECT count(DISTINCT clock) FROM processes")
        if clocks != 1:
            raise CannotMeasure(
                f"these are the logs of {clocks} machines, whose clocks do not compare; name those of one"
            )
        rows = store.rows(REQUESTS, [model])
        workers = {worker for _, worker, _, _ in rows}
        passes = [Pass(*row) for row in store.rows(PASSES) if row[0] in workers]
    return look((Request(id, g3, w3) for id, _, g3, w3 in rows), passes, patience_ns)


def patience_ns_of(model: Path) -> int:
    """The patience that a model's folder, DIR/NAME with its versions, declares: of the highest version."""
    [*_, version] = sorted((p for p in model.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
    problems: list[str] = []
    config = manifest.read(version, name=model.name, version=version.name, problems=problems)
    assert config is not None, problems
    return config.patience_ms * 1_000_000


def main() -> None:
    """Print what the logs say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", type=Path, nargs="+")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--patience-ms", type=int, default=PATIENCE_MS, help="of the model's model.toml")
    a = parser.parse_args()
    print(of_logs(a.logs, a.model, a.patience_ms * 1_000_000))


if __name__ == "__main__":
    main()
