"""docs/sql.md, made from the views: `python -m forensics.sql_docs` writes it again; a test fails when it is stale."""

import re
from collections.abc import Iterator
from pathlib import Path

from forensics.store import Store, empty_store
from forensics.views import VIEWS, View

FILE = Path(__file__).parent.parent / "docs" / "sql.md"
HEAD = "<!-- Made by `python -m forensics.sql_docs`; do not edit. -->\n"
INTRO = """# Logs in SQL

`tailrace sql [LOGS]... "SELECT ..."` asks logs one question in DuckDB's SQL, read-only, and prints a table, or with
`--format` CSV or JSON lines. LOGS are files or folders, plain, compressed (`*.jsonl.zst`) or archived by
`tailrace logs compact`; name those of all machines. Fields that a line leaves out have their defaults, NULL never
stands for them. Instants of the wall clock (`..._at`) are UTC; stamps are ns of the monotonic clock of the process,
and compare where the names of the clocks are equal ([the time model](architecture.md#time-model)).
"""

EXAMPLES: dict[str, str] = {
    "p99 of each model, by the minute": """
SELECT model, time_bucket(INTERVAL 1 minute, started_at) AS minute, count(*) AS requests,
       quantile_disc(e2e_ns, 0.99) / 1e6 AS p99_ms
FROM requests GROUP BY ALL ORDER BY ALL""",
    "Where the time of the slowest hundredth went, against all others (both add up to their mean)": """
WITH ranked AS (SELECT *, percent_rank() OVER (ORDER BY e2e_ns) >= 0.99 AS slow FROM requests WHERE answered)
SELECT slow, count(*) AS requests, avg(e2e_ns) / 1e6 AS e2e_ms, avg(queue_ns) / 1e6 AS queue_ms,
       avg(compute_ns) / 1e6 AS compute_ms, avg(transfer_ns) / 1e6 AS transfer_ms, avg(overhead_ns) / 1e6 AS overhead_ms
FROM ranked GROUP BY slow ORDER BY slow""",
    "The longest garbage collections of workers, and how many of their requests were under way then": """
SELECT e.inst AS worker, e.started_at, e.duration_ns / 1e6 AS ms, count(r.id) AS requests
FROM events e LEFT JOIN requests r
  ON r.worker = e.inst AND r.worker_clock = e.clock AND r.w8 > e.start_ns AND r.w8 - e2e_ns < e.end_ns
WHERE e.kind = 'gc' AND e.proc = 'worker' GROUP BY ALL ORDER BY ms DESC LIMIT 10""",
    "How full the batches are, and why they were sealed": """
SELECT worker, close_reason, count(*) AS batches, avg(rows) AS rows, avg(padding_ratio) AS padding,
       avg(forward_ns) / 1e6 AS forward_ms
FROM batches GROUP BY ALL ORDER BY batches DESC""",
    "Requests that needed more than one worker, and what the others told": """
SELECT r.id, r.attempt, r.lost_attempt_ns / 1e6 AS lost_ms, list(a.worker || ' ' || a.outcome) AS told
FROM requests r LEFT JOIN attempts a USING (id) WHERE r.attempt > 1 GROUP BY ALL ORDER BY lost_ms DESC LIMIT 10""",
    "What is missing of each process' log": """
SELECT proc, inst, host, first_at, last_at, lines, lost, dropped, bye FROM processes ORDER BY lost DESC""",
}
"""Questions by what they ask; a test asks each."""

_field = re.compile(r"`(?P<tag>[a-z]+)\.(?P<name>\w+)`")


def render() -> str:
    """The text of docs/sql.md."""
    with empty_store() as store:
        views = [line for view in VIEWS for line in _view(store, view)]
    return "\n".join((HEAD, INTRO, *_examples(), *views))


def _examples() -> Iterator[str]:
    yield "## Examples\n"
    for title, query in EXAMPLES.items():
        yield f"{title}:\n"
        yield f"```sql{query}\n```\n"


def _view(store: Store, view: View) -> Iterator[str]:
    types = {name: kind for name, kind, *_ in store.rows(f"DESCRIBE {view.name}")}
    yield f"## {view.name}\n"
    yield f"{view.meaning}\n"
    yield "| column | type | meaning |"
    yield "| --- | --- | --- |"
    record = ""
    for column in view.columns:
        field = _field.fullmatch(column.meaning)
        if field is None:
            yield f"| `{column.name}` | `{types[column.name]}` | {column.meaning} |"
        elif field["name"] != column.name:
            yield f"| `{column.name}` | `{types[column.name]}` | {_of_record(field['tag'], field['name'])} |"
        record = field["tag"] if field else record
    # What a record's own fields mean is told in one place.
    yield f"\nAnd every other field of {_of_record(record)}.\n" if record else ""


def _of_record(tag: str, field: str = "") -> str:
    return f"{f'`{field}` of ' if field else ''}[`{tag}`](events.md#{tag})"


def main() -> None:
    """Write the file."""
    FILE.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
