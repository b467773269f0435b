"""The figures of one run, or of a slice of one, read from its logs: what `compare` sets against another's.

Latency is that of requests that a worker answered with success; jobs are left out, since their caller does not wait.
An error is what the server is to blame for: 429 and 5xx. A request whose client left (499) is neither.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from forensics.segments_sql import SEGMENTS
from forensics.statistics.quantiles import band_around, parts_by_shares
from forensics.statistics.robust import Floats, Ints, quantile_rank
from forensics.store import Store

ASKS_A_MODEL = "route <> 'jobs' AND (model <> '' OR status >= 400)"
SUCCEEDED = "answered AND status < 400"
KIND = "model || ' of 2^' || CASE WHEN bytes_in > 0 THEN floor(log2(bytes_in))::INT || ' bytes' " \
       "ELSE floor(log2(greatest(rows, 1)))::INT || ' rows' END"  # fmt: skip
"""What was asked for, whatever came of it: requests of one kind should take the same time."""
PLACES = frozenset({"host", "port", "redis", "log_dir", "learned_dir", "log_level"})
"""Settings that say where a run was, not how."""


@dataclass(frozen=True, slots=True)
class Window:
    """Which requests belong to a run: those that began in [since_us, until_us) of the wall clock, of a model, of a
    version; an empty text stands for all."""

    since_us: int = 0
    until_us: int = 1 << 62
    model: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one run, whose requests began from `first_us` to `last_us` of the wall clock.

    `e2e_ns` has the latency of each success, ascending, and `kinds` what it asked for, as an index into `kind_names`.
    `parts_ns` gives, for each quantile asked for, how it is made up of the segments, in the order of SEGMENTS; they sum
    to it. `steal` is the share of the machine's time that its host took away, `runq` the share of the device threads'
    time that they stood in the run queue; None where the logs do not tell. `facts` are versions and settings.
    """

    name: str
    first_us: int
    last_us: int
    e2e_ns: Ints
    kinds: Ints
    kind_names: Sequence[str]
    requests: int
    answered_meanwhile: int
    errors: int
    left: int
    parts_ns: Mapping[float, Floats]
    steal: float | None = None
    runq: float | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    doubts: Sequence[str] = ()

    @property
    def took_s(self) -> float:
        """From the first request's begin to the last one's; at least a microsecond."""
        return max(self.last_us - self.first_us, 1) / 1e6

    @property
    def per_s(self) -> float:
        """Successes a second, while requests came in: what is answered after the last one came does not count."""
        return max(self.answered_meanwhile, 1) / self.took_s

    @property
    def offered_per_s(self) -> float:
        """Requests a second, whatever became of them."""
        return self.requests / self.took_s

    @property
    def error_share(self) -> float:
        """Errors among all requests."""
        return self.errors / max(self.requests, 1)


def quantile_name(share: float) -> str:
    """0.99 is "p99", 0.999 "p99.9"."""
    return f"p{round(100 * share, 6):g}"


def quantile(ascending: Ints, share: float) -> int:
    """The smallest value that at least this share of the values do not exceed. Raises ValueError of nothing."""
    return int(ascending[quantile_rank(len(ascending), share)])


def slices(first_us: int, last_us: int, count: int) -> list[Window]:
    """So many windows of equal length."""
    edges = [first_us + (last_us + 1 - first_us) * i // count for i in range(count + 1)]
    return [Window(since_us=a, until_us=b) for a, b in pairwise(edges)]


def bounds_us(store: Store, window: Window) -> tuple[int, int] | None:
    """When the first and the last request within the window began, wall clock; None when there is none."""
    where, given = _where(window)
    return _bounds(
        store.rows(f"SELECT min(epoch_us(started_at)), max(epoch_us(started_at)) FROM requests {where}", given)
    )


def _bounds(rows: Sequence[tuple[Any, ...]]) -> tuple[int, int] | None:
    first, last = rows[0]
    return None if first is None else (first, last)


def read_run(store: Store, name: str, window: Window, quantiles: Sequence[float], *, doubts: Sequence[str] = ()) -> Run:
    """The figures of the requests within a window. Raises ValueError when no request succeeded in it."""
    where, given = _where(window)
    requests, errors, left, first_us, last_us = store.rows(
        "SELECT count(*), count(*) FILTER (status = 429 OR status >= 500), count(*) FILTER (status = 499), "
        f"min(epoch_us(started_at)), max(epoch_us(started_at)) FROM requests {where}",
        given,
    )[0]
    kinds_of = f"SELECT DISTINCT {KIND} AS kind FROM requests {where} ORDER BY kind"
    kind_names = [str(kind) for (kind,) in store.rows(kinds_of, given)]
    # A number for each kind: a million texts would take more room than all that is kept of them.
    found = store.connection.execute(
        f"SELECT e2e_ns, list_position(?, {KIND}) - 1 AS kind FROM requests {where} AND {SUCCEEDED}",
        [kind_names, *given],
    ).fetchnumpy()
    e2e_ns: Ints = np.asarray(found["e2e_ns"], np.int64)
    if not len(e2e_ns):
        among = f", of {requests:,} requests" if requests else ""
        raise ValueError(f"{name} has no request that was answered with success{among}")
    order = np.lexsort((found["kind"], e2e_ns))
    e2e_ns, kinds = e2e_ns[order], np.asarray(found["kind"], np.int64)[order]
    parts_ns = {
        q: parts_by_shares(quantile(e2e_ns, q), _segments_around(store, e2e_ns, q, where, given)) for q in quantiles
    }
    ended, more = _where(replace(window, since_us=first_us, until_us=last_us + 1), "ended_at")
    meanwhile = store.value(f"SELECT count(*) FROM requests {ended} AND {SUCCEEDED}", more)
    steal, runq = _stolen(store, first_us, last_us)
    return Run(
        name, first_us, last_us, e2e_ns, kinds, kind_names, requests, meanwhile, errors, left, parts_ns, steal, runq,
        facts_of(store), doubts,
    )  # fmt: skip


def _segments_around(store: Store, e2e_ns: Ints, share: float, where: str, given: list[Any]) -> Ints:
    """The segments of the requests that stand for a quantile, [n, K]."""
    found = store.connection.execute(
        f"SELECT {', '.join(f'{segment}_ns' for segment in SEGMENTS)} FROM requests {where} AND {SUCCEEDED} "
        "AND e2e_ns BETWEEN ? AND ?",
        [*given, *band_around(e2e_ns, share)],
    ).fetchnumpy()
    return np.stack([np.asarray(column, np.int64) for column in found.values()], axis=1)


def _where(window: Window, instant: str = "started_at") -> tuple[str, list[Any]]:
    text = f"WHERE {ASKS_A_MODEL} AND epoch_us({instant}) >= ? AND epoch_us({instant}) < ?"
    given: list[Any] = [window.since_us, window.until_us]
    for column, value in (("model", window.model), ("version", window.version)):
        if value:
            text += f" AND {column} = ?"
            given.append(value)
    return text, given


def _stolen(store: Store, first_us: int, last_us: int) -> tuple[float | None, float | None]:
    """The share of time stolen, and the share of the device threads' time in the run queue."""
    between = f"BETWEEN make_timestamp({first_us}) AND make_timestamp({last_us})"
    steal = store.value(
        f'SELECT avg(list_avg(cpu_steal)) / 100 FROM resources WHERE len(cpu_steal) > 0 AND "at" {between}'
    )
    runq = store.value(f"SELECT sum(runq_ns) / nullif(sum(device_thread_ns), 0) FROM batches WHERE sealed_at {between}")
    return steal, runq


def facts_of(store: Store) -> dict[str, str]:
    """Versions, machine and settings of the processes, each by its name and that of its kind of process; where they
    differ between processes, all values."""
    seen: dict[str, set[str]] = {}
    for proc, inst_count, hosts in store.rows(
        "SELECT proc, count(DISTINCT inst), count(DISTINCT clock) FROM processes GROUP BY proc"
    ):
        seen[f"{proc}s"], seen[f"hosts of {proc}s"] = {str(inst_count)}, {str(hosts)}
    for proc, *values in store.rows(
        "SELECT DISTINCT proc, tailrace, python, torch, cores, torch_threads FROM processes"
    ):
        for fact, value in zip(("tailrace", "python", "torch", "cores", "torch_threads"), values, strict=True):
            if value not in (None, "", 0):
                seen.setdefault(f"{proc} {fact}", set()).add(str(value))
    for proc, config in store.rows("SELECT DISTINCT proc, config::VARCHAR FROM raw.cfg"):
        for setting, value in msgspec.json.decode(config or "{}").items():
            if setting not in PLACES:
                seen.setdefault(f"{proc} {setting}", set()).add(str(value))
    return {fact: ", ".join(sorted(values)) for fact, values in sorted(seen.items())}
