"""H3: one worker is slower than the others."""

from forensics.diagnose.case import Case, Evidence, Finding

SQL = """SELECT worker, time_bucket(INTERVAL 1 second, sealed_at) AS second, count(*) AS passes,
sum(device_thread_ns) / sum(predicted) AS times_predicted, sum(runq_ns) / sum(device_thread_ns) AS runq_share,
sum(cpu_ns) / sum(device_thread_ns) AS cpu_share FROM batches WHERE predicted > 0 GROUP BY ALL ORDER BY second"""


def detect(case: Case) -> Finding | None:
    """One worker whose passes are slow for their shapes while those of others, at the same time, are not."""
    slow = case.slowness
    worker = slow.odd_worker
    if not worker or slow.is_crowded_out:
        return None
    ratio = slow.by_worker[worker]
    others = max(value for name, value in slow.by_worker.items() if name != worker)
    return case.finding(
        "H3",
        slow.gain_of_workers(worker),
        0.85,
        f"worker {worker} takes {ratio:.2f} times as long as its shapes explain, the others {others:.2f} times",
        Evidence("ratio to the law of the model, by worker", {"worker": ratio, "others": others}, SQL),
        interval_us=slow.interval_us,
        culprits={"worker": [worker]},
        exemplars=case.exemplars(case.spent_slowly),
    )
