"""docs/events.md and docs/settings.md, made from the code: `python -m tailrace.docs` writes them again.

Names, types, defaults and docstrings come from `shared/events.py` and `shared/settings.py`; what a field of a record
means stands here. A test fails when a file has drifted, when a field has no meaning, and when the kinds of `evt`
listed here are not those that the code writes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import fields
from inspect import cleandoc
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

import msgspec

from shared import events, settings
from shared.eventlog import FILE_BYTES_MAX, FILES_MAX, FLUSH_INTERVAL_S, QUEUE_MAX

DOCS = Path(__file__).parent.parent / "docs"

HEAD = "<!-- Made by `python -m tailrace.docs`; do not edit. -->\n"

MEANING: dict[str, str] = {
    # The envelope.
    "v": "version of the log format",
    "t": "type of the record: the heading of its section here",
    "host": "host name",
    "clock": "name of a monotonic clock: the kernel's boot id and time namespace; equal names, comparable stamps",
    "pid": "process id",
    "proc": "kind of process: gateway, worker or up",
    "inst": "name of the process, also in the name of its file",
    "seq": "number of the line in this process, from 1",
    "mono": "when the line was written, monotonic clock, ns",
    "wall_us": "when the line was written, wall clock, us since the epoch",
    # hello, bye, cfg, clk.
    "tailrace": "version of tailrace",
    "python": "version of Python",
    "redis_py": "version of redis-py",
    "torch": "version of torch; empty in a process that does not load it",
    "cores": "cores the process may use: affinity, cut by the control group's quota",
    "cgroup_cores": "the control group's CPU quota in cores; null without one",
    "torch_threads": "torch threads of one forward pass",
    "gc_thresholds": "`gc.get_threshold()`",
    "argv": "command line",
    "reason": "why it stopped",
    "config": "the settings",
    "mono_a": "monotonic clock just before the wall clock was read, ns",
    "wall_ns": "wall clock, ns since the epoch",
    "mono_b": "monotonic clock just after, ns",
    "peers": "offsets of the workers' clocks, see [PeerOffset](#peeroffset)",
    "peer": "name of the worker",
    "lo": "lower bound of the offset, ns",
    "hi": "upper bound of the offset, ns",
    "n": "round trips that the bounds come from",
    # req, wreq.
    "id": "request id; the parts of a split request are ID, ID-1, ID-2, ...",
    "trace_id": "W3C trace id",
    "span_id": "span of the gateway",
    "req.parent_span_id": "the client's span, from its traceparent",
    "wreq.parent_span_id": "the gateway's span",
    "route": "`infer`, `embeddings`, or the method and pattern of another route",
    "status": "HTTP status; 499 = the client had gone",
    "label": "the client's x-request-id",
    "client_id": "`id` in the body of an infer request",
    "model": "name of the model",
    "version": "version of the model",
    "g0_lag": "how late the last beat of the event loop was at g0, ns: a hint at time lost before g0",
    "worker": "name of the worker that answered",
    "worker_clock": "the clock of the stamps w*",
    "attempt": "number of the attempt, from 1",
    "lost_us": "from the first delivery to this one, Redis' clock, us; 0 on the first attempt",
    "batch_id": "name of the pass",
    "batch_rows": "rows of the pass",
    "batch_requests": "requests of the pass",
    "close_reason": "why the batch was sealed: full, budget, preferred, idle, key, linger or drain",
    "tokens_useful": "units of the pass that belong to requests; rows, unless the model counts otherwise",
    "tokens_padded": "units of the pass computed, padding included",
    "rows": "rows (first dimension) of the request",
    "req.bytes_in": "bytes of the request body, decompressed",
    "req.bytes_out": "bytes of the response body, as sent",
    "wreq.bytes_in": "bytes of the payload, or of the file that its tensors are in",
    "wreq.bytes_out": "bytes of the encoded answer",
    "deadline_ms": "budget of the request from g0, ms",
    "entry_id": "id of its stream entry",
    "submits": "how often it was handed to Redis; more than 1 after trouble",
    "req.inflight": "requests that this gateway held already at g0",
    "parts": "requests it became in the queue; left out when it was one",
    "part": "id of the part answered last, whose stamps these are; left out when it was one",
    "error_code": "kind of error; left out without one",
    "error": "text of the error",
    "priority": "1 high, 2 normal, 3 low",
    "tenant": "who sent it: the name of the key's tenant, or the x-tenant header",
    "outcome": "DONE or FAILED when Redis took the answer, SPLIT when that told the gateway to hand it over by itself; "
    "else its verdict OKDUP, STALE or GONE; UNKNOWN if none came",
    "gateway": "name of the gateway that waits for the answer",
    "position": "place in the batch, from 0",
    "cost": "`Model.cost` of the request",
    # batch.
    "requests": "requests in the pass",
    "batch.rows": "rows of all of them",
    "batch.cost": "`Model.cost` of all of them",
    "rows_max": "the model's max_batch_size; 1 for a model without a batch dimension",
    "members": "request ids",
    "costs": "`Model.cost` of each member",
    "oldest_wait": "from w2 of the first request to w3, ns",
    "waiting_after": "requests of this model left waiting in the worker when the batch was sealed",
    "h2d": "copies to the device, device events, ns; 0 on the CPU",
    "compute": "forward, ns: by device events on CUDA, w6 - w5 on the CPU",
    "d2h": "copies from the device, device events, ns; 0 on the CPU",
    "cpu": "CPU time of the device's thread in forward, ns",
    "runq": "time that thread was ready but had no core, ns (Linux schedstat)",
    "minflt": "minor page faults of that thread in forward",
    "majflt": "major page faults of that thread in forward",
    "nvcsw": "voluntary context switches of that thread in forward",
    "nivcsw": "involuntary context switches of that thread in forward",
    "nth": "number of this model's pass in this worker, from 1",
    "shape_seen": "false for the first pass with this number of requests",
    "splits": "how often the batch was halved to find the request at fault",
    "predicted": "how long it should take from w4 to w7 where nothing else wants a core; 0 = not known yet",
    "compiles": "graphs that torch.compile made in this pass",
    # evt, res.
    "kind": "what happened, see the table below",
    "start": "when it began, monotonic clock of the writer, ns",
    "end": "when it ended; equal to start for an instant",
    "attrs": "facts that depend on the kind",
    "interval": "length of the sample, ns",
    "cpu_process": "CPU of this process, percent of one core",
    "cpu_user": "user time of each core of the machine, percent",
    "cpu_system": "system time of each core, percent",
    "cpu_iowait": "waiting for disks of each core, percent",
    "cpu_steal": "time the hypervisor took from each core, percent",
    "rss_bytes": "resident memory of the process",
    "threads": "threads of the process",
    "res.minflt": "minor page faults of the process",
    "res.majflt": "major page faults of the process",
    "res.nvcsw": "voluntary context switches of the process",
    "res.nivcsw": "involuntary context switches of the process",
    "psi_cpu": "share of the last 10 s in which some task waited for a core, percent; 0 where the kernel does not say",
    "psi_io": "the same for input and output",
    "psi_memory": "the same for memory",
    "loop_lag_max": "largest lateness of the event loop's beat, ns",
    "throttled": "how long CPU quotas stopped the process in this interval, ns",
    "redis_ping_max": "longest round trip of a PING to Redis in this interval, ns",
    "gc_counts": "`gc.get_count()`",
    "res.inflight": "requests that the process holds",
    "queued": "queued and running requests by model version; only in a gateway's line",
    # Stamps, ns; docs/architecture.md says where in the code each is taken.
    "g0": "the request reached the application",
    "g1": "its body was read",
    "g2": "it was understood and encoded",
    "g3": "it was handed to Redis",
    "g4": "Redis had confirmed that",
    "g5": "the gateway had received the answer",
    "g6": "the request's handler ran again",
    "g7": "the response was rendered",
    "g8": "its last byte was handed to the connection",
    "w0": "the worker asked for work",
    "w1": "it had received the request",
    "w2": "the request was decoded and waited for the device",
    "w3": "its batch was sealed",
    "w4": "the device's thread began with the batch",
    "w5": "the batch was collated",
    "w6": "the outputs were on the host",
    "w7": "the request's outputs were encoded",
    "batch.w7": "the outputs of the last request were encoded",
    "w8": "the answer was handed to Redis",
    "w9": "Redis had confirmed that",
}
"""What a field means: `RECORD.FIELD`, or `FIELD` for every record that has one of that name."""

EVENT_KINDS: dict[str, tuple[str, str, str]] = {
    "gc": (
        "gateway, worker",
        "a garbage collection: every full one, a younger one from 1 ms on",
        "generation, collected",
    ),
    "loop_lag": ("gateway, worker", "the event loop was at least 5 ms late", ""),
    "redis_lag": ("gateway, worker", "Redis answered a PING after 15 ms or more", ""),
    "clock_step": ("gateway, worker", "the wall clock stepped against the monotonic one", "ns"),
    "log_drop": ("all", "lines were dropped because the writer's queue was full", "lines"),
    "reconnect": ("gateway, worker", "the connection to Redis was lost; ends when it is back", ""),
    "worker_found": ("gateway", "a worker has announced itself", "worker, models"),
    "worker_lost": (
        "gateway, worker",
        "a worker has left the directory (gateway), or its lease on a queue ran out (whoever ticks; has `queue`)",
        "worker, queue",
    ),
    "reclaim": (
        "gateway, worker",
        "a tick ended overdue requests, or took those of a dead worker: queued again, or given up",
        "queue, requeued, dead, overdue",
    ),
    "redis_stood_still": (
        "gateway, worker",
        "nobody could tick for longer than a lease; leases were extended",
        "queue",
    ),
    "redis_restart": ("up", "the embedded Redis died and was started again", ""),
    "model_load": ("worker", "a model was loaded and warmed up", "model, version"),
    "lease_lost": ("worker", "this worker's lease had run out while it held requests", "queue, held"),
    "audit": ("gateway, worker", "live requests that nothing led to any more were queued again", "queue, requeued"),
    "release": ("worker", "a worker that stops handed back what it had not begun", "queue, requests"),
    "pass_hung": ("worker", "a forward pass did not return; the worker ends, begins with the pass", "requests"),
    "adopt": ("worker", "deliveries whose reply was lost were taken up", "queue, entries"),
    "webhook_given_up": (
        "gateway",
        "the end of a job could not be told to its client's address; begins with the last try",
        "request, host, tries, reason",
    ),
    "answers_dropped": ("worker", "answers could not be handed in before their deadlines", "requests, error"),
}
"""Each `evt`: who writes it, what it says, what is in `attrs`."""


def meaning(kind: type[msgspec.Struct], name: str) -> str:
    """What a field of a record means. Raises KeyError for a field that nobody has explained."""
    own = f"{kind.__struct_config__.tag}.{name}"
    return MEANING[own] if own in MEANING else MEANING[name]


def records() -> tuple[type[msgspec.Struct], ...]:
    """Everything that stands in a log, in the order of the document."""
    return (events.Envelope, *get_args(events.Event), events.PeerOffset)


def render_events() -> str:
    """The text of docs/events.md."""
    return "\n".join((HEAD, *_events_intro(), *(line for kind in records() for line in _record(kind))))


def _events_intro() -> Iterator[str]:
    yield "# Event log\n"
    yield (
        "Every process writes its facts as JSON lines to `LOG_DIR/PROC-INST.jsonl`, one record a line: the fields of "
        "the [envelope](#envelope), then those of the record that `t` names. A field of `req`, `wreq`, `batch` or "
        "`res` that has its default is left out. Fields are only ever added. Times are integers; ns unless the name "
        "says otherwise.\n"
    )
    yield (
        f"A thread writes the lines every {FLUSH_INTERVAL_S * 1000:.0f} ms; nothing is synced. Up to {QUEUE_MAX:,} "
        "lines wait for that; more are dropped and counted (`log_drop`; a gap in `seq`). A file is rotated at "
        f"{FILE_BYTES_MAX >> 20} MiB to `PROC-INST.000001.jsonl`, and so on; a process keeps its {FILES_MAX} newest "
        "files.\n"
    )


def _record(kind: type[msgspec.Struct]) -> Iterator[str]:
    tag = kind.__struct_config__.tag
    yield f"## {tag or kind.__name__}\n"
    # The kinds of `evt` have a table of their own.
    yield cleandoc(kind.__doc__ or "").partition("\n\nKinds:")[0] + "\n"
    defaults = kind.__struct_config__.omit_defaults
    yield from _table(("field", "type", "default", "meaning") if defaults else ("field", "type", "meaning"))
    for f in msgspec.structs.fields(kind):
        default = (f"`{_json(f)}`" if _json(f) else "",) if defaults else ()
        yield _row(f"`{f.name}`", f"`{type_text(f.type)}`", *default, meaning(kind, f.name))
    yield ""
    if kind is events.Evt:
        yield from _table(("kind", "written by", "what happened", "attrs"))
        for name, (writers, what, attrs) in EVENT_KINDS.items():
            yield _row(f"`{name}`", writers, what, attrs)
        yield ""


def _json(f: msgspec.structs.FieldInfo) -> str:
    """The default of a field as it would stand in a line; empty when it has none."""
    if f.default is not msgspec.NODEFAULT:
        return msgspec.json.encode(f.default).decode()
    if f.default_factory is not msgspec.NODEFAULT:
        return msgspec.json.encode(f.default_factory()).decode()
    return ""


def type_text(annotation: Any) -> str:
    """A type as it is written in the code."""
    if annotation is Any:
        return "Any"
    if isinstance(annotation, UnionType):
        return " or ".join("null" if part is type(None) else type_text(part) for part in get_args(annotation))
    if origin := get_origin(annotation):
        return f"{type_text(origin)}[{', '.join(map(type_text, get_args(annotation)))}]"
    return str(annotation.__name__)


def render_settings() -> str:
    """The text of docs/settings.md."""
    common = {f.name for f in fields(settings.CommonSettings)}
    sections: tuple[tuple[str, str, type[settings.CommonSettings], set[str]], ...] = (
        ("Common", "Of `tailrace gateway` and `tailrace worker` both.", settings.CommonSettings, set()),
        ("Gateway", "Of `tailrace gateway`.", settings.GatewaySettings, common),
        ("Worker", "Of `tailrace worker`.", settings.WorkerSettings, common),
    )
    lines = [HEAD, *_settings_intro()]
    for title, text, kind, known in sections:
        lines += [f"## {title}\n", f"{text}\n", *_table(("flag", "variable", "type", "default", "bounds", "meaning"))]
        lines += [_setting(f) for f in fields(kind) if f.name not in known]
        lines.append("")
    return "\n".join(lines)


def _settings_intro() -> Iterator[str]:
    yield "# Settings\n"
    yield (
        "A setting comes from the first of these that has it: the command-line flag; the environment variable; the "
        "file given with `--config FILE` (TOML; the keys are the flags' names with underscores, such as `lease_s`); "
        "the default. All mistakes are reported at once, and a variable `TAILRACE_...` or a key that no setting has is "
        "a mistake.\n"
    )
    yield (
        "`tailrace up` passes its environment on to the gateway and the workers that it starts, so the variables "
        "work there too; its own flags (`tailrace up --help`) come before them.\n"
    )


def _setting(f: Any) -> str:
    low, high = f.metadata["min"], f.metadata["max"]
    bounds = ", ".join(
        text
        for text in (f"at least {low}" if low is not None else "", f"at most {high}" if high is not None else "")
        if text
    )
    default = "empty" if f.default == "" else f"`{f.default}`"
    flag, variable = f"`--{f.name.replace('_', '-')}`", f"`{settings.ENV_PREFIX}{f.name.upper()}`"
    return _row(flag, variable, f"`{type_text(f.type)}`", default, bounds, f.metadata["help"])


def _table(titles: Iterable[str]) -> Iterator[str]:
    titles = tuple(titles)
    yield _row(*titles)
    yield _row(*("---" for _ in titles))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def main() -> None:
    """Write both files."""
    DOCS.mkdir(exist_ok=True)
    (DOCS / "events.md").write_text(render_events(), encoding="utf-8")
    (DOCS / "settings.md").write_text(render_settings(), encoding="utf-8")


if __name__ == "__main__":
    main()
