"""Business outcomes and the requests that they belong to: the file is read, and joined to the logs.

The file is CSV with a header or JSON lines. One column names the request: our id, the client's x-request-id or the id
in the body of an infer request; the others are outcomes, booleans or numbers.
"""

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from forensics.run_figures import SUCCEEDED
from forensics.statistics.robust import Floats, Ints
from forensics.store import Store

ROWS_MAX = 2_000_000
OUTCOMES_MAX = 20
KEYS = ("id", "request_id", "x_request_id", "label", "client_id", "x_tailrace_request_id")
"""Names of the column that names the request, the first that is there; case and dashes do not matter."""
_WORDS = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0, "1": 1.0, "0": 0.0}
SEVERAL = ("out", "first", "last", "slowest")
"""Which of several requests of one name counts."""


class OutcomeError(Exception):
    """The outcomes cannot be read or joined; says what was expected, and what is there."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The rows of the file whose key is given. `values` has each outcome, nan where a row leaves it empty; those in
    `booleans` are 0 or 1. `left_out` has the columns that are no outcomes, with a value that shows it."""

    key_column: str
    keys: Sequence[str]
    values: Mapping[str, Floats]
    booleans: frozenset[str]
    left_out: Mapping[str, str] = field(default_factory=dict)
    without_key: int = 0
    repeated: int = 0


@dataclass(frozen=True, slots=True)
class Joined:
    """The requests that an outcome was found for, one each: the row of the outcome, latency (ns), size (bytes), the
    hour since 1970 (UTC) and the model as a code, all [requests]. And what did not find its other half."""

    row: Ints
    e2e_ns: Ints
    size: Ints
    hour: Ints
    model: Ints
    by: Mapping[str, int]
    outcomes_unmatched: int
    outcomes_of_several: int
    outcomes_of_failed: int
    requests_unmatched: int


def read_outcomes(path: Path, *, key: str = "", wanted: Sequence[str] = ()) -> Outcomes:
    """Read a file. `key` names the column of the requests, `wanted` the outcomes; without them, both are found.

    Raises OutcomeError.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            beginning = file.read(4096).lstrip()
            file.seek(0)
            if beginning.startswith("["):
                raise OutcomeError(f"{path} is one JSON array; write one object a line")
            rows = _json_rows(path, file) if beginning.startswith("{") else _csv_rows(path, file)
            return _columns(path, rows, key, wanted)
    except OSError as e:
        raise OutcomeError(f"{path} cannot be read: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise OutcomeError(f"{path} is no UTF-8 text ({e.reason} at byte {e.start})") from e


def _csv_rows(path: Path, file: Any) -> Iterator[Mapping[str, str]]:
    """Each row by its columns, all texts."""
    head = file.readline()
    file.seek(0)
    delimiter = max(",;\t", key=head.count) if head else ","
    reader = csv.reader(file, delimiter=delimiter, strict=True)
    try:
        names = [name.strip() for name in next(reader, [])]
        if not any(names):
            raise OutcomeError(f"{path} is empty; a CSV begins with the names of its columns")
        if len(set(names)) < len(names):
            raise OutcomeError(f"{path}: a column is named twice in {', '.join(names)}")
        for row in reader:
            if len(row) not in (0, len(names)):
                raise OutcomeError(
                    f"{path}, line {reader.line_num}: {len(row)} fields, where the header names {len(names)} columns"
                )
            if row:
                yield dict(zip(names, map(str.strip, row), strict=True))
    except csv.Error as e:
        raise OutcomeError(f"{path}, line {reader.line_num}: {e}") from e


def _json_rows(path: Path, file: Any) -> Iterator[Mapping[str, str]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as e:
            raise OutcomeError(f"{path}, line {number}: no JSON ({e})") from e
        if not isinstance(row, dict):
            raise OutcomeError(f"{path}, line {number}: expected an object, and this is {line.strip()[:40]}")
        yield {name: _text(value) for name, value in row.items()}


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value.strip() if isinstance(value, str) else json.dumps(value)


def _columns(path: Path, rows: Iterator[Mapping[str, str]], key: str, wanted: Sequence[str]) -> Outcomes:
    texts: dict[str, list[str]] = {}
    count = 0
    for row in rows:
        for name in row:
            if name not in texts:
                texts[name] = [""] * count  # the rows before did not have it
        for name, column in texts.items():
            column.append(row.get(name, ""))
        count += 1
        if count > ROWS_MAX:
            raise OutcomeError(f"{path} has more than {ROWS_MAX:,} rows; split it")
    if not count:
        raise OutcomeError(f"{path} has no rows")
    key = key or _key_of(path, list(texts))
    for name in (key, *wanted):
        if name not in texts:
            raise OutcomeError(f"{path} has no column {name!r}; there are {', '.join(texts)}")
    named = texts.pop(key)
    # The last row of a key counts, as in a file that is appended to.
    last = {name: i for i, name in enumerate(named) if name}
    kept = sorted(last.values())
    values, booleans, left_out = _outcomes(path, texts, kept, wanted)
    without = named.count("")
    keys = [named[i] for i in kept]
    return Outcomes(key, keys, values, frozenset(booleans), left_out, without, count - without - len(kept))


def _key_of(path: Path, names: Sequence[str]) -> str:
    folded = {name.lower().replace("-", "_"): name for name in names}
    for key in KEYS:
        if key in folded:
            return folded[key]
    raise OutcomeError(f"{path}: no column names the request; there are {', '.join(names)}. Say which with --key")


def _outcomes(
    path: Path, texts: Mapping[str, list[str]], kept: Sequence[int], wanted: Sequence[str]
) -> tuple[dict[str, Floats], set[str], dict[str, str]]:
    """The columns that are outcomes, which of them are booleans, and the others with a value that shows it."""
    values: dict[str, Floats] = {}
    booleans, left_out = set(), {}
    for name in wanted or texts:
        column = [texts[name][i] for i in kept]
        told = [text for text in column if text]
        odd = next((text for text in told if _number(text) is None), None)
        if odd is not None or not told:
            left_out[name] = odd or "(nothing)"
            continue
        values[name] = np.array([math.nan if not text else _number(text) for text in column], float)
        if all(text.lower() in _WORDS for text in told):
            booleans.add(name)
    if left_out and wanted:
        name, odd = next(iter(left_out.items()))
        raise OutcomeError(f"{path}: the outcome {name!r} must be booleans or numbers, and one is {odd[:40]!r}")
    if not values:
        raise OutcomeError(f"{path}: no column beside the key has booleans or numbers")
    if len(values) > OUTCOMES_MAX:
        raise OutcomeError(f"{path} has {len(values)} outcomes; name at most {OUTCOMES_MAX} with --outcome")
    return values, booleans, left_out


def _number(text: str) -> float | None:
    if (word := _WORDS.get(text.lower())) is not None:
        return word
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def join(store: Store, outcomes: Outcomes, *, model: str = "", several: str = "out", failed: bool = False) -> Joined:
    """Find the request of each outcome: by our id, else by its x-request-id, else by the id in its body.

    Requests that failed are passed over unless `failed` is set; of several requests of one name the `several` one
    counts, none with "out".
    """
    store.connection.execute(
        "CREATE OR REPLACE TEMP TABLE outcome AS SELECT unnest(?::VARCHAR[]) AS key, unnest(range(?)) AS row",
        [list(outcomes.keys), len(outcomes.keys)],
    )
    store.connection.execute(
        "CREATE OR REPLACE TEMP TABLE asked AS SELECT id, label, client_id, model, e2e_ns, started_at, "
        "CASE WHEN bytes_in > 0 THEN bytes_in ELSE rows END AS size, "
        f"epoch_us(started_at) // 3600000000 AS hour, ({SUCCEEDED}) AS ok FROM requests "
        "WHERE route <> 'jobs' AND (model <> '' OR status >= 400) AND (? = '' OR model = ?)",
        [model, model],
    )
    names = " UNION ALL ".join(
        f"SELECT row, asked.*, '{name}' AS way, {i} AS nth FROM outcome JOIN asked ON key = {name} AND {name} <> ''"
        for i, name in enumerate(("id", "label", "client_id"))
    )
    order = {"last": "started_at DESC", "slowest": "e2e_ns DESC"}.get(several, "started_at")
    store.connection.execute(
        f"CREATE OR REPLACE TEMP TABLE matched AS WITH every AS ({names}), best AS ("
        "SELECT *, count(*) FILTER (ok OR $failed) OVER (PARTITION BY row) AS many FROM every "
        "QUALIFY nth = min(nth) OVER (PARTITION BY row)) "
        f"SELECT *, row_number() OVER (PARTITION BY row ORDER BY ok OR $failed DESC, {order}, id) AS place FROM best",
        {"failed": failed},
    )
    counted = f"place = 1 AND (ok OR {failed}) AND (many = 1 OR {several != 'out'})"
    found = store.connection.execute(
        "SELECT row, e2e_ns, size, hour, dense_rank() OVER (ORDER BY model) AS model, way FROM matched "
        f"WHERE {counted} ORDER BY row"
    ).fetchnumpy()
    matched, of_several, of_failed = store.rows(
        f"SELECT count(*), count(*) FILTER (many > 1), count(*) FILTER (NOT (ok OR {failed})) FROM matched "
        "WHERE place = 1"
    )[0]
    without = store.value(f"SELECT count(*) FROM asked WHERE (ok OR {failed}) AND id NOT IN (SELECT id FROM matched)")
    ways, counts = np.unique(np.asarray(found["way"], str), return_counts=True)
    columns = {name: np.asarray(found[name], np.int64) for name in ("row", "e2e_ns", "size", "hour", "model")}
    return Joined(
        **columns,
        by={str(way): int(n) for way, n in zip(ways, counts, strict=True)},
        outcomes_unmatched=len(outcomes.keys) - matched,
        outcomes_of_several=of_several,
        outcomes_of_failed=of_failed,
        requests_unmatched=without,
    )
