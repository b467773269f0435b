"""What a measurement found, and what it says of the generator itself."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.connections import FailureKind
from bench.histogram import Histogram
from bench.tally import Tally

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
LATE_SHARE_MAX = 0.05
LATE_NS_MIN = 1_000_000
"""The generator is called late when it was by more than this and than that share of the latency, at p50 or at p99."""
WRITTEN_TOGETHER = 32
"""So many buckets become one where they are written: 3 % are exact enough for a picture, the quantiles stand beside."""
BUSY_CORES_MAX = 0.9
"""A process with one event loop that uses more of a core than this has no time left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The figures of one run. `elapsed_s` is from the end of the warm-up to the last answer, or to the end if later.

    `generator_cores` is the share of a core that the generator itself used.
    """

    server: dict[str, str]
    target: str
    models: tuple[str, ...]
    binary: bool
    connections_max: int
    connections_most: int
    is_open: bool
    tally: Tally
    elapsed_s: float
    unfinished_count: int
    broken_off: bool
    generator_cores: float

    @property
    def request_count(self) -> int:
        """Requests that count: answered or failed, after the warm-up."""
        return self.tally.ok_count + self.tally.failed_count

    @property
    def rate_per_s(self) -> float:
        """Answered requests a second."""
        return self.tally.ok_count / self.elapsed_s

    @property
    def has_ledger(self) -> bool:
        """True when the server told where the time went."""
        return self.tally.outside.count > 0

    @property
    def exit_status(self) -> int:
        """0 when every request was answered 2xx, and there was one; else 1."""
        return 0 if self.tally.ok_count and not self.tally.failed_count else 1

    def warnings(self) -> list[str]:
        """Why the figures may say more of the generator than of the server."""
        return list(self._warnings())

    def _warnings(self) -> Iterator[str]:
        if self.generator_cores > BUSY_CORES_MAX:
            yield (
                f"the generator was the bottleneck: it used {self.generator_cores:.0%} of a core, so it may have sent "
                "less, and measured longer, than the server deserves; ask for less, or run several, with less each"
            )
        if not self.is_open:
            return
        if unsent := self.tally.errors.get(FailureKind.UNSENT.value):
            yield f"{unsent.count} requests were not sent, the first since {unsent.first}"
        t = self.tally
        late = [q for q in (0.5, 0.99) if _matters(t.late.quantile(q), t.latency.quantile(q))]
        if not late:
            return
        if all(t.connecting.quantile(q) > t.late.quantile(q) / 2 for q in late):
            why = "opening them took long"
            if self.connections_most >= self.connections_max:
                why = f"all {self.connections_max} were busy, since the server was slower than the rate"
            yield (
                f"requests waited for a connection (p99 {t.connecting.quantile(0.99) / 1e6:.3f} ms, counted in the "
                f"latency): {why}; --connections bounds them"
            )
        else:
            yield (
                f"the generator was the bottleneck: it sent late (p50 {t.late.quantile(0.5) / 1e6:.3f} ms, p99 "
                f"{t.late.quantile(0.99) / 1e6:.3f} ms, counted in the latency); give it a core or machine of its own, "
                "or a lower rate"
            )

    def to_json(self) -> dict[str, Any]:
        """Every figure, ready for JSON. Times in ns where the name says so; `buckets` are [least, greatest, count]."""
        t = self.tally
        return {
            "server": self.server,
            "url": self.target,
            "models": list(self.models),
            "binary": self.binary,
            "loop": "open" if self.is_open else "closed",
            "connections_max": self.connections_max,
            "connections_most": self.connections_most,
            "broken_off": self.broken_off,
            "requests": self.request_count,
            "ok": t.ok_count,
            "failed": t.failed_count,
            "unfinished": self.unfinished_count,
            "warm_up_requests": t.warm_up_count,
            "elapsed_s": self.elapsed_s,
            "per_s": self.rate_per_s,
            "rows_per_s": t.ok_rows / self.elapsed_s,
            "sent_bytes": t.sent_bytes,
            "received_bytes": t.received_bytes,
            "latency_ns": {**figures(t.latency), "buckets": [list(b) for b in t.latency.buckets(WRITTEN_TOGETHER)]},
            "generator": {
                "cores": self.generator_cores,
                "late_ns": figures(t.late),
                "connecting_ns": figures(t.connecting),
                "warnings": self.warnings(),
            },
            "ledger_ns": {
                **{name: figures(h) for name, h in t.parts.items()},
                "outside": figures(t.outside),
            }
            if self.has_ledger
            else None,
            "errors": {kind: {"count": e.count, "first": e.first} for kind, e in t.errors.items()},
            "slowest": [{"latency_ns": s.latency_ns, "id": s.id} for s in t.slowest],
        }


def figures(h: Histogram) -> dict[str, float]:
    """Count, mean, least, greatest and quantiles of a histogram, in ns."""
    quantiles = {name: h.quantile(share) for name, share in QUANTILES.items()}
    return {"count": h.count, "mean": h.mean_ns, "min": h.min_ns, **quantiles, "max": h.max_ns}


def _matters(late_ns: int, latency_ns: int) -> bool:
    return late_ns > max(LATE_NS_MIN, LATE_SHARE_MAX * latency_ns)
