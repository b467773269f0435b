"""What `tailrace sql` shows: the views over the records, each column with its meaning. docs/sql.md is made from here.

A record of type T is the relation `raw.T`, its envelope's columns included and every default filled in (`store.py`).
Instants of the wall clock are TIMESTAMP (UTC), stamps are ns of a monotonic clock, spans end with their unit.
"""

from dataclasses import dataclass

from forensics.offsets import BUCKET_NS
from forensics.schema import RECORDS
from forensics.segments_sql import CLASSES, SEGMENTS, since, with_segments


@dataclass(frozen=True, slots=True)
class Shown:
    """A column of a view: the expression that gives it, and what it means; `TAG.FIELD` is a record's own field."""

    name: str
    expression: str
    meaning: str


@dataclass(frozen=True, slots=True)
class View:
    """A view: `source` is what its columns are taken from."""

    name: str
    meaning: str
    source: str
    columns: tuple[Shown, ...]

    @property
    def sql(self) -> str:
        """The statement that makes it."""
        columns = ", ".join(f'{c.expression} AS "{c.name}"' for c in self.columns)
        return f"CREATE VIEW {self.name} AS SELECT {columns} FROM {self.source}"


def _wall(stamp_ns: str) -> str:
    """The wall clock at an instant of the writer's own clock."""
    return f"make_timestamp(wall_us - (mono - {stamp_ns}) // 1000)"


def _field(tag: str, name: str, shown: str = "") -> Shown:
    return Shown(shown or name, f'"{name}"', f"`{tag}.{name}`")


def _fields(tag: str, *left_out: str, **renamed: str) -> tuple[Shown, ...]:
    """The record's own fields; `renamed` gives those without a unit in their name one."""
    names = [c.name for c in RECORDS[tag] if c.name not in left_out]
    return tuple(_field(tag, name, renamed.get(name, "")) for name in names)


def _writer(name: str) -> tuple[Shown, ...]:
    """Who wrote it."""
    return (
        Shown(name, "inst", f"name of the {'process' if name == 'inst' else name} that wrote this"),
        Shown("host", "host", "its host"),
        Shown("clock", "clock", "its monotonic clock, by name"),
    )


_SEGMENT_OF = {name: f"the segment `{name}`, ns; 0 when there was none" for name in SEGMENTS}
_OFFSET = f"""(SELECT r.*,
    CASE WHEN w8 = 0 OR r.clock = r.worker_clock THEN 0 ELSE coalesce(o.lo_ns, w8 - g5) END AS theta_lo_ns,
    CASE WHEN w8 = 0 OR r.clock = r.worker_clock THEN 0 ELSE coalesce(o.hi_ns, w1 - g3) END AS theta_hi_ns,
    CASE WHEN w8 = 0 OR r.clock = r.worker_clock THEN 'same clock'
        ELSE coalesce(o.source, 'causality') END AS offset_source
    FROM raw.req r LEFT JOIN raw.offsets o ON r.clock = o.gateway_clock AND r.worker_clock = o.worker_clock
    AND r.g5 // {BUCKET_NS} = o.bucket)"""

REQUESTS = View(
    "requests",
    "One row a request that its gateway logged. The segments sum to `e2e_ns` exactly, and so do the four classes.",
    f"({with_segments(_OFFSET)})",
    (
        Shown("started_at", _wall("g0"), "when it reached the gateway"),
        Shown("ended_at", "make_timestamp(wall_us)", "when its line was written, right after its end"),
        *_writer("gateway"),
        *_fields("req", g0_lag="g0_lag_ns"),
        Shown("e2e_ns", "e2e_ns", "from g0 to the last stamp reached"),
        Shown("answered", "answered", "true when a worker's answer came back"),
        *(Shown(f"{name}_ns", f"{name}_ns", meaning) for name, meaning in _SEGMENT_OF.items()),
        *(Shown(f"{name}_ns", f"{name}_ns", f"the class {name}: the sum of its segments") for name in CLASSES),
        Shown("hop_ns", "hop_ns", "round trip to the worker less the residence there: `(g5 - g3) - (w8 - w1)`"),
        Shown(
            "hop_error_ns", "hop_error_ns", "how far the borders of `uplink` may lie off; 0 when the hop is not split"
        ),
        Shown(
            "theta_error_ns", "theta_error_ns", "the same of `downlink`, or of `unexplained` when the hop is not split"
        ),
        Shown("theta_lo_ns", "theta_lo_ns", "lower bound of worker's clock less gateway's"),
        Shown("theta_hi_ns", "theta_hi_ns", "upper bound of it"),
        Shown("offset_source", "offset_source", "how that is known: `same clock`, `round trips` or `causality`"),
    ),
)

_INSIDE = ("pull", "batch_wait", "dispatch", "collate", "forward", "post", "out_loop")
ATTEMPTS = View(
    "attempts",
    "One row a request and attempt that a worker logged. Join `requests` by `id` (`part` of a request in parts).",
    "raw.wreq",
    (
        Shown("taken_at", _wall("w1"), "when the worker had it"),
        *_writer("worker"),
        *_fields("wreq"),
        *(
            Shown(f"{name}_ns", since(f"w{i + 2}", *(f"w{k}" for k in range(i + 1, 0, -1))), _SEGMENT_OF[name])
            for i, name in enumerate(_INSIDE)
        ),
        Shown("confirm_ns", since("w9", "w8"), "until Redis confirmed the answer, ns; beside the request's way"),
    ),
)
BATCHES = View(
    "batches",
    "One row a pass through a device. Join `requests` by `worker` and `batch_id`.",
    "raw.batch",
    (
        Shown("sealed_at", _wall("w3"), "when it was sealed"),
        *_writer("worker"),
        *_fields("batch", oldest_wait="oldest_wait_ns", h2d="h2d_ns", compute="compute_ns", d2h="d2h_ns", cpu="cpu_ns",
                 runq="runq_ns"),
        Shown("forward_ns", "w6 - w5", "from w5 to w6, ns"),
        Shown("device_thread_ns", "w7 - w4", "how long the device's thread had it, w4 to w7, ns"),
        Shown(
            "padding_ratio",
            "CASE WHEN tokens_padded > 0 THEN 1 - tokens_useful / tokens_padded END",
            "share of the tokens computed that were padding; NULL for a model without tokens",
        ),
    ),
)  # fmt: skip
EVENTS = View(
    "events",
    "One row an event; `attrs ->> 'name'` is a fact of it. Kinds: see [events.md](events.md#evt).",
    "raw.evt",
    (
        Shown("started_at", _wall('"start"'), "when it began"),
        Shown("proc", "proc", "kind of process that wrote it"),
        *_writer("inst"),
        *_fields("evt", start="start_ns", end="end_ns"),
        Shown("duration_ns", '"end" - "start"', "how long it took; 0 for an instant"),
    ),
)
RESOURCES = View(
    "resources",
    "One row a process and second: what it and its machine used.",
    "raw.res",
    (
        Shown("at", "make_timestamp(wall_us)", "when it was measured"),
        Shown("proc", "proc", "kind of process"),
        *_writer("inst"),
        Shown("mono", "mono", "when it was measured, its monotonic clock, ns"),
        *_fields(
            "res",
            interval="interval_ns",
            loop_lag_max="loop_lag_max_ns",
            throttled="throttled_ns",
            redis_ping_max="redis_ping_max_ns",
        ),
    ),
)
PROCESSES = View(
    "processes",
    "One row a life of a process, from its `hello` on.",
    "raw.lives",
    (
        Shown("proc", "proc", "kind of process: gateway, worker or up"),
        *_writer("inst"),
        Shown("pid", "pid", "process id"),
        Shown("first_at", "make_timestamp(first_us)", "its first line"),
        Shown("last_at", "make_timestamp(last_us)", "its last line"),
        Shown("first_seq", "first_seq", "number of its first line: above 1, what came before was rotated away"),
        Shown("last_seq", "last_seq", "number of its last line"),
        Shown("lines", "lines", "its lines that were read, each once"),
        Shown("repeated", "repeated", "lines that were read more than once, in copies of a log"),
        Shown("lost", "lost", "lines missing between the first and the last, by the gaps of their numbers"),
        Shown("dropped", "dropped", "lines that it dropped itself, by its own account (`log_drop`)"),
        Shown("hello", "hello", "true when its first record is here"),
        Shown("bye", "bye", "why it stopped; NULL when it did not say goodbye"),
        *_fields("hello"),
    ),
)
OFFSETS = View(
    "clock_offsets",
    "Bounds of the offset between two hosts' clocks, for each tenth of a second in which an answer crossed.",
    "raw.offsets",
    (
        Shown("gateway_clock", "gateway_clock", "name of the gateway's clock"),
        Shown("worker_clock", "worker_clock", "name of the worker's clock"),
        Shown("from_ns", f"bucket * {BUCKET_NS}", "where the tenth of a second begins, gateway's clock"),
        Shown("lo_ns", "lo_ns", "lower bound of worker's clock less gateway's"),
        Shown("hi_ns", "hi_ns", "upper bound of it"),
        Shown("source", "source", "how that is known: `round trips` or `causality`"),
    ),
)
UNREAD_LINES = View(
    "unread_lines",
    "One row a line that could not be read.",
    "raw.unread",
    (
        Shown("file", "file", "its file"),
        Shown("kind", "kind", "`torn`: cut off when its writer died; `bad`: no record, or one of a newer version"),
        Shown("text", "text", "its beginning"),
    ),
)

VIEWS = (REQUESTS, ATTEMPTS, BATCHES, EVENTS, RESOURCES, PROCESSES, OFFSETS, UNREAD_LINES)
"""All of them, in the order of docs/sql.md."""
