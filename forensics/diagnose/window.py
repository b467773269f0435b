"""The requests, passes, events and samples of a stretch of time, as columns: what the diagnosis computes with.

Theory of operation. The store (`forensics/store.py`) holds the logs as SQL; the statistics want arrays. A `Window` is
taken out of the store once: a number for each request (its rank by when it reached its gateway), a number for each
pass, and integers for names (an index into a list). Ids stay in the store, where `ids` finds them again by number. All
times are int64 nanoseconds; `at_us` is the wall clock, the only axis that all hosts share. Nothing here is computed
from anything but the view `requests`, so the segments of a request sum to its end-to-end time here too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from forensics.segments_sql import SEGMENTS
from forensics.store import Store
from shared.events import Batch, Res

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

STAMPS = ("g0", "g5", "w1")
"""Where the segments lie on the clocks of gateway and worker; the rest follows from their lengths."""
NUMBERS = ("attempt", "rows", "bytes_in", "bytes_out", "accept_ns", "confirm_ns", "repeats")
NAMES = ("model", "worker", "gateway", "tenant")
BATCH_NUMBERS = (
    "w3", "w4", "w5", "w6", "w7", "requests", "rows", "rows_max", "cost", "tokens_useful", "tokens_padded", "cpu_ns",
    "runq_ns", "minflt", "majflt", "nvcsw", "nivcsw", "nth", "splits", "predicted", "waiting_after", "oldest_wait_ns",
    "compute_ns", "compiles",
)  # fmt: skip
BATCH_NAMES = ("model", "worker", "close_reason")


ABSENT_NS = 3_600_000_000_000
"""For so long before its first line a process counts as absent."""


class NothingToDiagnose(Exception):
    """The stretch of time holds no answered request; says what is there."""


@dataclass(frozen=True, slots=True)
class Named:
    """A column of names: `codes` are indices into `names`."""

    codes: Ints
    names: tuple[str, ...]

    def where(self, name: str) -> Bools:
        """Which rows have this name."""
        if name not in self.names:
            return np.zeros(len(self.codes), dtype=np.bool_)
        found: Bools = self.codes == self.names.index(name)
        return found


@dataclass(frozen=True, slots=True)
class Requests:
    """One row an answered request, oldest first. `row` is its row in the store's table (see `ids`); `batch` is the
    row of its pass in `Batches`, -1 when that is not known; `cost` is its own size in the units of its model
    (tokens, rows), 0 when not known."""

    row: Ints
    at_us: Ints
    e2e: Ints
    segments: Mapping[str, Ints]
    stamps: Mapping[str, Ints]
    numbers: Mapping[str, Ints]
    names: Mapping[str, Named]
    cost: Ints
    batch: Ints

    def __len__(self) -> int:
        return len(self.e2e)


@dataclass(frozen=True, slots=True)
class Batches:
    """One row a pass through a device, by worker and then by time. `longest` and `squares` are of its requests'
    costs."""

    at_us: Ints
    numbers: Mapping[str, Ints]
    names: Mapping[str, Named]
    shape_seen: Bools
    longest: Floats
    squares: Floats

    def __len__(self) -> int:
        return len(self.at_us)

    @classmethod
    def of(cls, records: Sequence[Batch]) -> "Batches":
        """From the records of one worker's log, in their order; when they were is not told."""

        def column(name: str) -> Ints:
            return np.array([getattr(b, name.removesuffix("_ns")) for b in records], dtype=np.int64)

        names = {"model": [b.model for b in records], "close_reason": [b.close_reason for b in records]}
        found = {name: tuple(sorted(set(values))) for name, values in names.items()}
        return cls(
            at_us=np.zeros(len(records), dtype=np.int64),
            numbers={name: column(name) for name in BATCH_NUMBERS},
            names={
                "worker": Named(np.zeros(len(records), dtype=np.int64), ("",)),
                **{n: Named(np.array([found[n].index(v) for v in names[n]], np.int64), found[n]) for n in names},
            },
            shape_seen=np.array([b.shape_seen for b in records], dtype=np.bool_),
            longest=np.array([max(b.costs, default=0) for b in records], dtype=np.float64),
            squares=np.array([sum(c * c for c in b.costs) for b in records], dtype=np.float64),
        )

    @property
    def took(self) -> Ints:
        """How long the device's thread had it, ns."""
        took: Ints = self.numbers["w7"] - self.numbers["w4"]
        return took


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: `start` and `end` on the clock of the process `inst`, `at_us` the wall clock of
    `start`."""

    kind: str
    proc: str
    inst: str
    clock: str
    start: int
    end: int
    at_us: int
    attrs: Mapping[str, Any]

    @property
    def ns(self) -> int:
        """How long it took."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Samples:
    """What one process and its machine used, second by second; lists per core are summed."""

    proc: str
    inst: str
    host: str
    at_us: Ints
    numbers: Mapping[str, Floats]


@dataclass(frozen=True, slots=True)
class Life:
    """A process, from its first line to its last in the logs; `bye` is None when it did not say goodbye."""

    proc: str
    inst: str
    pid: int
    first_us: int
    last_us: int
    hello: bool
    bye: str | None


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration that a process logged, and when."""

    proc: str
    inst: str
    at_us: int
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Window:
    """All of a stretch of time. `unanswered` counts requests by error code, "" for those that only have a status."""

    requests: Requests
    batches: Batches
    events: Sequence[Event]
    samples: Sequence[Samples]
    lives: Sequence[Life]
    configs: Sequence[Config]
    unanswered: Mapping[str, int]
    unanswered_at_us: Ints
    unanswered_repeats: Ints
    newest_us: int
    cores: int
    """Of the largest machine."""
    torch_threads: int
    """Of a worker, as its process was started."""

    @property
    def seconds(self) -> float:
        """From the first arrival to the last."""
        at = self.requests.at_us
        return max(1e-3, float(at[-1] - at[0]) / 1e6)


def take(store: Store, *, since_us: int | None = None, until_us: int | None = None, model: str = "") -> Window:
    """Take the requests that reached their gateway in [since, until) out of the store. Raises NothingToDiagnose."""
    conditions = ["true"]
    if since_us is not None:
        conditions.append(f"started_at >= make_timestamp({since_us:d})")
    if until_us is not None:
        conditions.append(f"started_at < make_timestamp({until_us:d})")
    if model:
        conditions.append("model = getvariable('wanted_model')")
        store.connection.execute("SET VARIABLE wanted_model = ?", [model])
    _gather(store, " AND ".join(conditions))
    _names(store)
    batches = _batches(store)
    requests = _requests(store)
    if not len(requests):
        other = store.value("SELECT count(*) FROM requests")
        raise NothingToDiagnose(f"no answered request in this time; the logs hold {other:,} requests in all")
    unanswered = dict(store.rows("SELECT error_code, count(*) FROM diagnose.unanswered GROUP BY ALL"))
    return Window(
        requests,
        batches,
        _events(store),
        _samples(store),
        _lives(store),
        _configs(store),
        unanswered,
        _column(store, "SELECT epoch_us(started_at) AS x FROM diagnose.unanswered ORDER BY started_at"),
        _column(store, "SELECT repeats AS x FROM diagnose.unanswered ORDER BY started_at"),
        store.value("SELECT max(last_us) FROM raw.lives"),
        store.value("SELECT coalesce(max(cores), 0) FROM raw.hello"),
        store.value("SELECT coalesce(max(torch_threads), 0) FROM raw.hello"),
    )


def ids(store: Store, window: Window, numbers: Sequence[int]) -> list[str]:
    """The ids of some requests of the window taken last, in their order."""
    rows = [int(window.requests.row[number]) for number in numbers]
    found = dict(
        store.rows("SELECT rowid, id FROM diagnose.requests WHERE rowid IN (SELECT unnest(?::BIGINT[]))", [rows])
    )
    return [found[row] for row in rows]


def _gather(store: Store, condition: str) -> None:
    """Make the tables that the columns are read from: requests and passes, each with its number."""
    store.connection.execute("CREATE SCHEMA IF NOT EXISTS diagnose")
    segments = ", ".join(f"{name}_ns" for name in SEGMENTS)
    derived = ("accept_ns", "confirm_ns", "repeats")
    plain = [name for name in (*STAMPS, *NUMBERS, *NAMES) if name not in derived]
    store.connection.execute(
        f"""CREATE OR REPLACE TABLE diagnose.every AS
            SELECT id, part, batch_id, worker_clock, started_at, e2e_ns, answered, error_code, label,
                   CASE WHEN g4 > g3 THEN g4 - g3 ELSE 0 END AS accept_ns, {", ".join(plain)}, {segments}
            FROM requests WHERE {condition}"""
    )
    # Only requests with a label are ranked: most have none, and to sort a million of those takes as long as all the
    # rest.
    store.connection.execute(
        """CREATE OR REPLACE TABLE diagnose.again AS
           SELECT id, repeats FROM (
               SELECT id, row_number() OVER (PARTITION BY label ORDER BY started_at) - 1 AS repeats
               FROM diagnose.every WHERE label <> ''
           ) WHERE repeats > 0"""
    )
    store.connection.execute(
        """CREATE OR REPLACE TABLE diagnose.batches AS
           SELECT row_number() OVER (ORDER BY worker, clock, w4) - 1 AS b, epoch_us(sealed_at) AS at_us,
                  * EXCLUDE (members, costs), list_max(costs) AS longest,
                  list_sum(list_transform(costs, lambda c: c::DOUBLE * c)) AS squares
           FROM batches WHERE sealed_at BETWEEN (SELECT min(started_at) - INTERVAL 1 minute FROM diagnose.every)
                                        AND (SELECT max(started_at) + INTERVAL 5 minute FROM diagnose.every)"""
    )
    store.connection.execute(
        """CREATE OR REPLACE TABLE diagnose.unanswered AS
           SELECT started_at, error_code, coalesce(a.repeats, 0) AS repeats
           FROM diagnose.every LEFT JOIN diagnose.again a USING (id) WHERE NOT answered"""
    )
    store.connection.execute(
        f"""CREATE OR REPLACE TABLE diagnose.requests AS
           WITH costs AS (
               SELECT id, attempt, inst, max(cost) AS cost, max(CASE WHEN w9 > w8 THEN w9 - w8 ELSE 0 END) AS confirm_ns
               FROM raw.wreq GROUP BY ALL
           )
           SELECT r.id, epoch_us(r.started_at) AS at_us, r.e2e_ns, coalesce(c.cost, 0) AS cost,
                  coalesce(c.confirm_ns, 0) AS confirm_ns, coalesce(a.repeats, 0) AS repeats, coalesce(b.b, -1) AS b,
                  r.accept_ns, {", ".join(f"r.{name}" for name in plain)}, {segments}
           FROM diagnose.every r
           LEFT JOIN costs c ON c.id = CASE WHEN r.part <> '' THEN r.part ELSE r.id END AND c.attempt = r.attempt
                AND c.inst = r.worker
           LEFT JOIN (SELECT b, worker, clock, batch_id FROM diagnose.batches) b
                ON b.worker = r.worker AND b.clock = r.worker_clock AND b.batch_id = r.batch_id
           LEFT JOIN diagnose.again a ON a.id = r.id
           WHERE r.answered"""
    )
    store.connection.execute("DROP TABLE diagnose.every")


def _names(store: Store) -> None:
    """Number the names of both tables."""
    for name in dict.fromkeys((*NAMES, *BATCH_NAMES)):
        tables = [f"SELECT {name} AS name FROM diagnose.requests"] if name in NAMES else []
        tables += [f"SELECT {name} AS name FROM diagnose.batches"] if name in BATCH_NAMES else []
        store.connection.execute(
            f"""CREATE OR REPLACE TABLE diagnose.name_{name} AS
                SELECT name, row_number() OVER (ORDER BY name) - 1 AS code
                FROM (SELECT DISTINCT name FROM ({" UNION ALL ".join(tables)}))"""
        )


def _column(store: Store, sql: str) -> Ints:
    """The one column `x` of a query."""
    return _columns(store, sql)["x"]


def _columns(store: Store, sql: str) -> dict[str, Ints]:
    fetched = store.connection.execute(sql).fetchnumpy()
    return {name: np.ma.filled(column, 0).astype(np.int64, copy=False) for name, column in fetched.items()}


def _codes(table: str, name: str) -> str:
    """An expression for the number of a name, in a query of `table`."""
    return f"(SELECT code FROM diagnose.name_{name} n WHERE n.name = {table}.{name})"


def _known(store: Store, name: str) -> tuple[str, ...]:
    return tuple(row[0] for row in store.rows(f"SELECT name FROM diagnose.name_{name} ORDER BY code"))


def _requests(store: Store) -> Requests:
    # A table is read in the order in which it lies, so columns read one by one fit together; all at once would be in
    # memory
    # twice, and to have a million wide rows sorted takes the database longer than sorting each column here.
    store.connection.execute("SET preserve_insertion_order = true")
    table = "diagnose.requests"
    order: Ints | None = None

    def column(expression: str) -> Ints:
        values = _column(store, f"SELECT {expression} AS x FROM {table}")
        if not values.any():
            return np.broadcast_to(np.int64(0), values.shape)
        return values if order is None else values[order]

    order = np.argsort(column("at_us"), kind="stable")
    found = Requests(
        row=order,
        at_us=column("at_us"),
        e2e=column("e2e_ns"),
        segments={name: column(f"{name}_ns") for name in SEGMENTS},
        stamps={name: column(name) for name in STAMPS},
        numbers={name: column(name) for name in NUMBERS},
        names={name: Named(column(_codes(table, name)), _known(store, name)) for name in NAMES},
        cost=column("cost"),
        batch=column("b"),
    )
    store.connection.execute("SET preserve_insertion_order = false")
    return found


def _batches(store: Store) -> Batches:
    table = "diagnose.batches"
    numbers = _columns(store, f"SELECT {', '.join(BATCH_NUMBERS)}, at_us, shape_seen FROM {table} ORDER BY b")
    reals = store.connection.execute(f"SELECT longest::DOUBLE AS l, squares AS s FROM {table} ORDER BY b").fetchnumpy()
    longest, squares = (np.ma.filled(reals[name], 0.0).astype(np.float64) for name in ("l", "s"))
    return Batches(
        at_us=numbers.pop("at_us"),
        shape_seen=numbers.pop("shape_seen").astype(np.bool_),
        numbers=numbers,
        names={
            name: Named(
                _column(store, f"SELECT {_codes(table, name)} AS x FROM {table} ORDER BY b"), _known(store, name)
            )
            for name in BATCH_NAMES
        },
        longest=longest,
        squares=squares,
    )


def _events(store: Store) -> list[Event]:
    from msgspec import json

    # What began before the window may reach into it.
    rows = store.rows(
        """SELECT kind, proc, inst, clock, start_ns, end_ns, epoch_us(started_at), attrs FROM events
           WHERE started_at BETWEEN (SELECT make_timestamp(min(at_us)) - INTERVAL 5 minute FROM diagnose.requests)
                            AND (SELECT make_timestamp(max(at_us)) + INTERVAL 5 minute FROM diagnose.requests)
           ORDER BY started_at"""
    )
    # A process that was not there yet did nothing until its first line.
    hellos = store.rows("SELECT proc, inst, clock, mono, wall_us FROM raw.hello WHERE proc = 'worker'")
    absent = [Event("absent", proc, inst, c, mono - ABSENT_NS, mono, us, {}) for proc, inst, c, mono, us in hellos]
    return [
        *absent,
        *(
            Event(kind, proc, inst, c, start, end, us, json.decode(attrs or "{}"))
            for kind, proc, inst, c, start, end, us, attrs in rows
        ),
    ]


def _samples(store: Store) -> list[Samples]:
    plain = [name for name, kind in Res.__annotations__.items() if kind in (int, float)]
    lists = [name for name, kind in Res.__annotations__.items() if kind == list[float]]
    shown = ", ".join([*(f'"{name}"::DOUBLE AS {name}' for name in plain), *(f"list_sum({n}) AS {n}" for n in lists)])
    found = []
    for proc, inst, host in store.rows("SELECT DISTINCT proc, inst, host FROM raw.res ORDER BY ALL"):
        fetched = store.connection.execute(
            f"SELECT wall_us, {shown} FROM raw.res WHERE proc = ? AND inst = ? ORDER BY wall_us", [proc, inst]
        ).fetchnumpy()
        columns = {name: np.ma.filled(c, 0).astype(np.float64, copy=False) for name, c in fetched.items()}
        found.append(Samples(proc, inst, host, columns.pop("wall_us").astype(np.int64), columns))
    return found


def _lives(store: Store) -> list[Life]:
    sql = "SELECT proc, inst, pid, first_us, last_us, hello, bye FROM raw.lives ORDER BY first_us, inst"
    return [Life(*row) for row in store.rows(sql)]


def _configs(store: Store) -> list[Config]:
    from msgspec import json

    sql = "SELECT proc, inst, wall_us, config FROM raw.cfg ORDER BY wall_us"
    return [Config(proc, inst, at_us, json.decode(config or "{}")) for proc, inst, at_us, config in store.rows(sql)]
