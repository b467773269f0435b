"""The causes that the diagnosis knows: how each is called, where it shows, what cures it, and what would refute it."""

from dataclasses import dataclass

FAMILIES = {
    "A": "work and batching",
    "B": "Python runtime",
    "C": "model runtime",
    "D": "processor",
    "E": "disk, memory, periodic work",
    "F": "Redis and network",
    "G": "failure and recovery",
    "H": "one part of the fleet",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """`remedy` and `check` are for the reader of a finding; `check` says what would show that the finding is wrong."""

    id: str
    name: str
    title: str
    segments: tuple[str, ...]
    remedy: str
    check: str

    @property
    def family(self) -> str:
        """Its family, by the letter of its id."""
        return FAMILIES[self.id[0]]


_ALL = (
    Cause("A1", "input_size", "Long inputs take long", ("forward",),
          "Give size classes an SLO of their own, truncate or chunk long inputs, or route them to workers of their "
          "own.",
          "Among requests of one size the tail is not there: compare p99 by size bucket."),
    Cause("A2", "padding", "Short requests are padded to long batch-mates", ("forward",),
          "Set `[batching] pads = true` so that batches are chosen by length, lower `max_batch_size`, or pack without "
          "padding.",
          "Short requests in batches without a long one are as slow."),
    Cause("A3", "linger", "Batches wait for company while the device is free", ("batch_wait",),
          "Lower `max_queue_delay_microseconds` (0: begin at once when the device is free).",
          "The wait does not end at the configured delay, or the device was busy meanwhile."),
    Cause("A4", "small_batches", "Batches are too small for the load", ("stream_wait", "batch_wait"),
          "Raise `max_batch_size` (and `cost_max`), or add workers.",
          "Larger batches would take as long per request: `tailrace bench model` shows the law."),
    Cause("A5", "head_of_line", "One huge request blocks those behind it", ("stream_wait", "batch_wait"),
          "Limit the size of inputs, chunk them, or serve large ones from workers of their own; a second worker lets "
          "short ones pass.",
          "The blocking batches took longer than their size explains."),
    Cause("A6", "overload", "More arrives than can be computed", ("stream_wait", "batch_wait"),
          "Add workers, refuse earlier (deadlines, queue bounds), or degrade to a lighter model.",
          "The arrival rate did not change, or the queue did not grow with it."),
    Cause("A7", "deep_prefetch", "One worker holds requests that another could run", ("batch_wait",),
          "Let a worker take no more ahead than its next batch: lower `max_batch_size`, which also bounds that.",
          "The other workers were busy while these requests waited."),
    Cause("B1", "worker_gc", "Garbage collection stops the worker", ("forward", "collate", "stream_wait"),
          "Freeze what is loaded (`gc.freeze()` after warm-up), keep fewer live objects in the model, raise the "
          "thresholds.",
          "The slow passes are as slow without a collection over them."),
    Cause("B2", "gateway_gc", "Garbage collection stops the gateway", ("gw_loop", "gw_wake", "downlink"),
          "Keep fewer live objects in the gateway (requests in flight), freeze what is loaded, raise the thresholds.",
          "The gateway's loop stalls as long without a collection."),
    Cause("B3", "gateway_loop", "Something blocks the gateway's event loop", ("gw_loop", "gw_wake", "downlink"),
          "Find the blocking call (`py-spy dump --pid PID` while it stalls), move it to a thread or a process.",
          "The loop's beat was on time while requests stalled."),
    Cause("B4", "payload", "Large payloads take time to parse and to send",
          ("recv", "pre", "pull", "render", "respond"),
          "Send binary tensors instead of JSON, bound the size of bodies.",
          "Requests of the same size are quick when they come alone."),
    Cause("B5", "pool_starvation", "Passes wait for a thread that is held", ("dispatch",),
          "Give blocking work a pool of its own, or more threads.",
          "A thread was free while passes waited."),
    Cause("B6", "gil", "Another thread of the worker holds the interpreter", ("forward", "collate", "post", "out_loop"),
          "Move the pure Python work of the model out of the process, or into code that releases the GIL.",
          "The process used no more CPU than its passes did."),
    Cause("C1", "recompile", "torch.compile compiles for new shapes", ("forward",),
          "Mark dimensions as dynamic, use shape buckets and warm all of them up, or `eager_on_recompile`.",
          "No graph was compiled in the slow passes."),
    Cause("C2", "compile_limit", "torch.compile gave up and runs eagerly", ("forward",),
          "Raise `recompile_limit`, use shape buckets; watch the counter of graphs.",
          "The passes were as slow before the last graph was compiled."),
    Cause("C3", "cold_process", "The first passes of a new process are slow", ("forward",),
          "Warm up every bucket before the worker says it is ready.",
          "Later passes of the process are as slow."),
    Cause("C4", "new_shape", "The first pass of each new shape is slow", ("forward",),
          "Bucket shapes and warm the buckets up; enlarge the primitive cache.",
          "The second pass of the same shape is as slow."),
    Cause("C6", "polling", "The worker looks for work too seldom", ("stream_wait",),
          "Let the worker block on the stream instead of polling, or poll more often.",
          "The worker was busy while the requests waited."),
    Cause("D1", "oversubscription", "More compute threads than cores", ("forward",),
          "Set `--threads` to cores / workers, and `OMP_WAIT_POLICY=passive`.",
          "A pass takes as long when no other worker computes."),
    Cause("D2", "neighbour", "Another process takes the cores", ("forward", "gw_wake", "out_loop"),
          "Isolate the cores (cpuset), set requests = limits, or move the neighbour.",
          "The cores were not full, or our own processes filled them."),
    Cause("D3", "cpu_quota", "The container's CPU quota throttles", ("forward",),
          "Raise the quota, or run no more threads than it allows.",
          "The kernel counted no throttled period."),
    Cause("D4", "slow_processor", "Everything computes slower", ("forward", "collate", "post"),
          "Look at clocks, temperature and power limits of the host; move the load away.",
          "Only some inputs, workers or operators are slower."),
    Cause("E1", "periodic_job", "A job that runs by the clock takes the machine", ("forward", "gw_wake", "out_loop"),
          "Move or spread the job, or run it with `chrt --idle 0` and `ionice -c 3`.",
          "The slow phases do not come back at the period."),
    Cause("E3", "page_faults", "Memory is read back from disk", ("forward",),
          "Lock or pre-touch the weights, give the machine more memory.",
          "The slow passes had no major page faults."),
    Cause("F1", "redis_stall", "Redis stood still", ("uplink", "deliver", "downlink", "stream_wait"),
          "No snapshots (RDB, AOF rewrite) on the queue's node, transparent huge pages off, no slow commands.",
          "Other clients of this Redis were answered meanwhile."),
    Cause("F2", "redis_writes", "Redis delays writes", ("uplink", "downlink"),
          "`appendfsync everysec`, `no-appendfsync-on-rewrite yes`, a disk of its own for the AOF.",
          "Reads were as slow as writes."),
    Cause("F4", "network", "The network between a process and Redis is slow", ("uplink", "deliver", "downlink"),
          "Put them closer together; look at the link and its retransmissions.",
          "Processes on other hosts saw the same."),
    Cause("G1", "worker_crash", "A worker died, and its requests were run again", ("lost_attempt",),
          "Find out why it died (its log ends there, `tailrace dlq`); shorten the lease.",
          "The requests were not taken a second time."),
    Cause("G5", "retry_storm", "Clients repeat requests faster than these can be answered",
          ("stream_wait", "batch_wait"),
          "Give clients a retry budget with backoff and jitter; refuse early.",
          "Each request came once."),
    Cause("H3", "slow_worker", "One worker is slower than the others", ("forward",),
          "Take it out, look at its host; let workers pull by their own speed.",
          "The others are as slow for the same shapes."),
)  # fmt: skip

CAUSES = {cause.id: cause for cause in _ALL}
"""All of them by id."""
