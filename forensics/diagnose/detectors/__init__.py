"""One detector a file: `detect(case)` is a finding, or None where a necessary condition does not hold."""

from collections.abc import Callable, Sequence

from forensics.diagnose.case import Case, Finding
from forensics.diagnose.detectors import (
    cold_process,
    compile_limit,
    cpu_quota,
    deep_prefetch,
    gateway_gc,
    gateway_loop,
    gil,
    head_of_line,
    input_size,
    linger,
    neighbour,
    network,
    new_shape,
    overload,
    oversubscription,
    padding,
    page_faults,
    payload,
    periodic_job,
    polling,
    pool_starvation,
    recompile,
    redis_stall,
    redis_writes,
    retry_storm,
    slow_processor,
    slow_worker,
    small_batches,
    worker_crash,
    worker_gc,
)

Detector = Callable[[Case], Finding | None]

DETECTORS: Sequence[Detector] = (
    input_size.detect, padding.detect, linger.detect, small_batches.detect, head_of_line.detect, overload.detect,
    deep_prefetch.detect, worker_gc.detect, gateway_gc.detect, gateway_loop.detect, payload.detect,
    pool_starvation.detect, gil.detect, recompile.detect, compile_limit.detect, cold_process.detect, new_shape.detect,
    polling.detect, oversubscription.detect, neighbour.detect, cpu_quota.detect, slow_processor.detect,
    periodic_job.detect, page_faults.detect, redis_stall.detect, redis_writes.detect, network.detect,
    worker_crash.detect, retry_storm.detect, slow_worker.detect,
)  # fmt: skip
"""All of them, in the order of the catalogue."""
