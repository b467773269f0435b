"""Every log record, one frozen struct each: the contract between the processes that write and the forensics that read.

A line of the log is the envelope and one of these. Stamps g* are the gateway's and w* the worker's monotonic
nanoseconds; 0 means "not reached". The sum of a request's segments is made of these stamps alone
(`shared/timeline.py`). Fields are only ever added.
"""

from typing import Any

import msgspec

LOG_VERSION = 1


class Envelope(msgspec.Struct, frozen=True):
    """Who wrote the line, and when. `seq` counts per process: a gap is a lost line."""

    v: int
    t: str
    host: str
    clock: str
    pid: int
    proc: str
    inst: str
    seq: int
    mono: int
    wall_us: int


class Hello(msgspec.Struct, frozen=True, tag_field="t", tag="hello"):
    """A process has started: versions and the machine as it sees it."""

    tailrace: str
    python: str
    redis_py: str
    torch: str = ""
    cores: int = 0
    cgroup_cores: float | None = None
    torch_threads: int = 0
    gc_thresholds: list[int] = []
    argv: list[str] = []


class Bye(msgspec.Struct, frozen=True, tag_field="t", tag="bye"):
    """A process has stopped in good order."""

    reason: str


class Cfg(msgspec.Struct, frozen=True, tag_field="t", tag="cfg"):
    """The whole effective configuration, secrets left out."""

    config: dict[str, Any]


class PeerOffset(msgspec.Struct, frozen=True):
    """Bounds of (worker's clock - gateway's clock) in ns, from `n` round trips since the last record."""

    peer: str
    clock: str
    lo: int
    hi: int
    n: int


class Clk(msgspec.Struct, frozen=True, tag_field="t", tag="clk"):
    """An anchor between the two clocks of this process, and the offsets of its peers."""

    mono_a: int
    wall_ns: int
    mono_b: int
    peers: list[PeerOffset] = []


class Req(msgspec.Struct, frozen=True, tag_field="t", tag="req", omit_defaults=True):
    """One request as its gateway saw it, the worker's stamps included: this line alone holds the whole timeline.

    An HTTP request that became several `parts` has the stamps of the one answered last: `part` is that one's id.
    """

    id: str
    trace_id: str
    span_id: str
    route: str
    status: int
    g0: int
    g8: int
    label: str = ""
    client_id: str = ""
    parent_span_id: str = ""
    model: str = ""
    version: str = ""
    g1: int = 0
    g2: int = 0
    g3: int = 0
    g4: int = 0
    g5: int = 0
    g6: int = 0
    g7: int = 0
    g0_lag: int = 0
    w0: int = 0
    w1: int = 0
    w2: int = 0
    w3: int = 0
    w4: int = 0
    w5: int = 0
    w6: int = 0
    w7: int = 0
    w8: int = 0
    worker: str = ""
    worker_clock: str = ""
    attempt: int = 0
    lost_us: int = 0
    batch_id: str = ""
    batch_rows: int = 0
    batch_requests: int = 0
    close_reason: str = ""
    tokens_useful: int = 0
    tokens_padded: int = 0
    rows: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    deadline_ms: int = 0
    entry_id: str = ""
    submits: int = 0
    inflight: int = 0
    parts: int = 0
    part: str = ""
    error_code: str = ""
    error: str = ""
    tenant: str = ""
    priority: int = 2


class Wreq(msgspec.Struct, frozen=True, tag_field="t", tag="wreq", omit_defaults=True):
    """One request in one attempt as its worker saw it: w9 is when Redis confirmed the answer."""

    id: str
    trace_id: str
    parent_span_id: str
    model: str
    version: str
    attempt: int
    outcome: str
    w0: int
    w1: int
    w2: int
    w3: int = 0
    w4: int = 0
    w5: int = 0
    w6: int = 0
    w7: int = 0
    w8: int = 0
    w9: int = 0
    g3: int = 0
    gateway: str = ""
    entry_id: str = ""
    lost_us: int = 0
    batch_id: str = ""
    position: int = 0
    rows: int = 0
    cost: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    error_code: str = ""
    error: str = ""


class Batch(msgspec.Struct, frozen=True, tag_field="t", tag="batch", omit_defaults=True):
    """One pass through the device. Times in ns; device times are from device events where the device has them."""

    batch_id: str
    model: str
    version: str
    close_reason: str
    w3: int
    w4: int
    w5: int
    w6: int
    w7: int
    requests: int
    rows: int
    rows_max: int
    cost: int
    members: list[str]
    costs: list[int]
    oldest_wait: int = 0
    waiting_after: int = 0
    tokens_useful: int = 0
    tokens_padded: int = 0
    h2d: int = 0
    compute: int = 0
    d2h: int = 0
    cpu: int = 0
    runq: int = 0
    minflt: int = 0
    majflt: int = 0
    nvcsw: int = 0
    nivcsw: int = 0
    nth: int = 0
    shape_seen: bool = True
    splits: int = 0
    predicted: int = 0
    compiles: int = 0


class Evt(msgspec.Struct, frozen=True, tag_field="t", tag="evt"):
    """Something that takes time from requests, or explains why time was taken. `start` and `end` on `mono`'s clock.

    Kinds: gc, loop_lag, redis_lag (a PING was answered late), model_load, worker_found, worker_lost, reconnect,
    reclaim (ids that a tick handed on or ended), audit (ids of live requests that nothing led to any more, enqueued
    again), release (a worker that stops hands back what it has not begun), lease_lost, pass_hung, adopt (a worker
    found entries of its own that it had not seen), answers_dropped, webhook_given_up, redis_stood_still,
    redis_restart, clock_step, log_drop.
    """

    kind: str
    start: int
    end: int
    attrs: dict[str, Any] = {}


class Res(msgspec.Struct, frozen=True, tag_field="t", tag="res", omit_defaults=True):
    """What the process and its machine used in the last second."""

    interval: int
    cpu_process: float
    cpu_user: list[float]
    cpu_system: list[float]
    cpu_iowait: list[float]
    cpu_steal: list[float]
    rss_bytes: int
    threads: int
    minflt: int = 0
    majflt: int = 0
    nvcsw: int = 0
    nivcsw: int = 0
    psi_cpu: float = 0.0
    psi_io: float = 0.0
    psi_memory: float = 0.0
    loop_lag_max: int = 0
    gc_counts: list[int] = []
    inflight: int = 0
    queued: dict[str, int] = {}
    throttled: int = 0
    redis_ping_max: int = 0


Event = Hello | Bye | Cfg | Clk | Req | Wreq | Batch | Evt | Res
