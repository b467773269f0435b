"""What the baselines look at: each request with its attributes, and metrics by the second, from the log's views."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.segments_sql import SEGMENTS
from forensics.store import Store

Floats = NDArray[np.float64]
EVENTS = ("gc", "loop_lag", "model_load", "reconnect", "reclaim", "worker_lost", "redis_stood_still")
SKIPPED_S = 4
"""Processes have just started, and their first requests are no part of any question."""

_LARGEST = f"list_max([{', '.join(f'{{ns: r.{name}_ns, name: {name!r}}}' for name in SEGMENTS)}]).name"
_REQUESTS = f"""
SELECT r.e2e_ns, {_LARGEST} AS largest, r.worker, r.close_reason, r.attempt > 1 AS again, r.status <> 200 AS failed,
    least(r.batch_requests, 8) AS members, coalesce(ceil(log2(r.bytes_in)), 0) AS bytes_log2,
    coalesce(floor(5 * b.padding_ratio), 0) AS padding, coalesce(b.shape_seen, true) AS shape_seen,
    coalesce(b.nth <= 3, false) AS young, coalesce(b.majflt > 0, false) AS major_faults,
    coalesce(b.runq_ns > 0.2 * b.forward_ns, false) AS waited_for_core,
    coalesce(b.predicted > 0 AND b.device_thread_ns > 1.5 * b.predicted, false) AS slower_than_predicted,
    r.label IN (SELECT label FROM requests WHERE label <> '' GROUP BY label HAVING count(*) > 1) AS repeated,
    EXISTS (SELECT 1 FROM events e WHERE e.kind = 'gc' AND e.proc = 'worker' AND e.duration_ns > 10000000
        AND e.clock = r.worker_clock AND e.start_ns < r.w8 AND e.end_ns > r.g3) AS gc_worker,
    EXISTS (SELECT 1 FROM events e WHERE e.kind = 'gc' AND e.proc = 'gateway' AND e.duration_ns > 10000000
        AND e.clock = r.clock AND e.start_ns < r.g8 AND e.end_ns > r.g0) AS gc_gateway,
    EXISTS (SELECT 1 FROM events e WHERE e.kind = 'loop_lag' AND e.proc = 'gateway' AND e.duration_ns > 30000000
        AND e.clock = r.clock AND e.start_ns < r.g8 AND e.end_ns > r.g0) AS late_gateway
FROM requests r LEFT JOIN batches b ON r.worker = b.worker AND r.batch_id = b.batch_id
WHERE r.route = 'infer' AND r.started_at >= (SELECT min(started_at) FROM requests) + INTERVAL {SKIPPED_S} SECOND
ORDER BY r.started_at
"""


def of_requests(store: Store) -> tuple[Floats, dict[str, list[str]]]:
    """End-to-end ms of each request, and its attributes by name, as texts."""
    cursor = store.connection.execute(_REQUESTS)
    names = [column[0] for column in cursor.description or ()]
    rows = cursor.fetchall()
    e2e_ms = np.array([row[0] for row in rows], np.float64) / 1e6
    return e2e_ms, {name: [str(row[i]) for row in rows] for i, name in enumerate(names) if i}


def first_us(store: Store) -> int | None:
    """When the first second of `by_second` begins, on the wall clock; None without requests."""
    at_us: int | None = store.value("SELECT epoch_us(min(started_at)) FROM requests")
    return None if at_us is None else at_us + SKIPPED_S * 1_000_000


def by_second(store: Store) -> dict[str, Floats]:
    """Metrics of the whole system, second by second; those of a second without a value are 0."""
    start_us = first_us(store)
    if start_us is None:
        return {}
    seconds = max(1, (store.value("SELECT epoch_us(max(started_at)) FROM requests") - start_us) // 1_000_000)
    series: dict[str, Floats] = {}

    def add(query: str) -> None:
        cursor = store.connection.execute(query)
        names = [column[0] for column in cursor.description or ()]
        for row in cursor.fetchall():
            if row[0] is not None and 0 <= row[0] < seconds:
                for name, value in zip(names[1:], row[1:], strict=True):
                    series.setdefault(name, np.zeros(seconds))[row[0]] = float(value or 0)

    def second(column: str) -> str:
        return f"(epoch_us({column}) - {start_us}) // 1000000"

    tails = ", ".join(f"quantile_cont({name}_ns, 0.95) / 1e6 AS {name}" for name in SEGMENTS)
    add(
        f"SELECT {second('started_at')} AS s, count(*) AS arrivals, {tails}, quantile_cont(bytes_in, 0.95) AS bytes_in,"
        " count(*) FILTER (attempt > 1) AS again, count(*) - count(DISTINCT label) AS repeated"
        " FROM requests WHERE route = 'infer' GROUP BY s"
    )
    add(
        f"SELECT {second('sealed_at')} AS s, sum(runq_ns) / 1e6 AS runq, sum(majflt) AS majflt,"
        " avg(coalesce(padding_ratio, 0)) AS padding, avg(requests) AS members,"
        " avg((close_reason = 'linger')::INT) AS lingered, count(*) FILTER (NOT shape_seen) AS new_shapes,"
        " quantile_cont(cpu_ns / greatest(tokens_padded, 1), 0.5) AS cpu_a_token,"
        " max(cost) AS largest_batch, count(DISTINCT worker) AS workers FROM batches GROUP BY s"
    )
    for kind in EVENTS:
        add(
            f"SELECT {second('started_at')} AS s, coalesce(sum(duration_ns) FILTER (proc = 'worker'), 0) / 1e6"
            f" + count(*) FILTER (proc = 'worker') AS {kind}_worker,"
            f" coalesce(sum(duration_ns) FILTER (proc = 'gateway'), 0) / 1e6"
            f" + count(*) FILTER (proc = 'gateway') AS {kind}_gateway FROM events WHERE kind = '{kind}' GROUP BY s"
        )
    add(
        f"SELECT {second('resources.at')} AS s, avg(list_sum(cpu_user) + list_sum(cpu_system)) AS machine_cpu,"
        " sum(cpu_process) FILTER (proc = 'gateway') AS gateway_cpu,"
        " sum(cpu_process) FILTER (proc = 'worker') AS worker_cpu, avg(psi_io) AS psi_io,"
        " avg(list_sum(cpu_iowait)) AS iowait, sum(nivcsw) AS nivcsw FROM resources GROUP BY s"
    )
    return series


def shares(values: list[str], chosen: NDArray[np.bool_]) -> Mapping[str, tuple[float, float]]:
    """Of each value: its share within the chosen, and within the others."""
    array = np.array(values, object)
    inside, outside = array[chosen], array[~chosen]
    found: dict[str, Any] = {}
    for value in sorted(set(values)):
        found[value] = (float(np.mean(inside == value)), float(np.mean(outside == value)))
    return found
