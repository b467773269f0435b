"""`tailrace sql`: one question to the store, read-only, and its answer as a table, CSV or JSON lines.

Nothing can be changed by it: only a statement that reads is let through, the connection cannot reach any file but the
archives that it was opened with, and its settings are locked.
"""

import csv
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO

import duckdb

from forensics.archive import quoted
from forensics.files import archived_tag
from forensics.store import Store

ROWS_AT_ONCE = 2_000
CELL_CHARS_MAX = 120
"""A table cuts longer texts; CSV and JSON have them whole."""


class SqlError(Exception):
    """The question cannot be asked; says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The names of the columns, those of them that hold JSON texts, and the rows as they come."""

    columns: Sequence[str]
    json_columns: frozenset[int]
    rows: Iterator[Sequence[Any]]


def ask(store: Store, query: str) -> Answer:
    """Run one query that reads; the store is locked by it, and can only be read from then on. Raises SqlError."""
    try:
        statements = duckdb.extract_statements(query)
    except duckdb.Error as e:
        raise SqlError(_told(e)) from e
    if len(statements) != 1:
        raise SqlError(f"one SELECT is expected, and there are {len(statements)} statements")
    # Not EXPLAIN either: with ANALYZE it does what it explains.
    if statements[0].type is not duckdb.StatementType.SELECT:
        kind = str(statements[0].type).rpartition(".")[2].replace("_", " ")
        raise SqlError(f"logs are read-only: one SELECT is expected, and this is {kind}")
    lock(store)
    try:
        result = store.connection.execute(statements[0])
        described = result.description or []
    except duckdb.Error as e:
        raise SqlError(_told(e)) from e
    json_columns = frozenset(i for i, column in enumerate(described) if str(column[1]) == "JSON")
    return Answer([column[0] for column in described], json_columns, _fetched(result))


def lock(store: Store) -> None:
    """Let the connection read nothing but the archives of the store, and change no setting any more."""
    if store.value("SELECT current_setting('lock_configuration')"):
        return
    archives = ", ".join(quoted(Path(file)) for file in store.files if archived_tag(file))
    store.connection.execute(f"SET allowed_paths = [{archives}]")
    store.connection.execute("SET enable_external_access = false; SET lock_configuration = true")


def _fetched(result: duckdb.DuckDBPyConnection) -> Iterator[Sequence[Any]]:
    try:
        while rows := result.fetchmany(ROWS_AT_ONCE):
            yield from rows
    except duckdb.Error as e:
        raise SqlError(_told(e)) from e


def _told(e: duckdb.Error) -> str:
    """What DuckDB says, where it stands in the query included."""
    return str(e).strip()


def print_to(out: TextIO, answer: Answer, shape: str) -> None:
    """Print an answer as a `table`, as `csv`, or as `json` lines. Raises SqlError when reading the rows fails."""
    if shape == "csv":
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(answer.columns)
        writer.writerows([_text(value) for value in row] for row in answer.rows)
    elif shape == "json":
        for row in answer.rows:
            values = [
                json.loads(value) if value and i in answer.json_columns else _json(value) for i, value in enumerate(row)
            ]
            out.write(json.dumps(dict(zip(answer.columns, values, strict=True)), ensure_ascii=False) + "\n")
    else:
        _print_table(out, answer)


def _print_table(out: TextIO, answer: Answer) -> None:
    rows = [[_cell(value) for value in row] for row in answer.rows]
    right = [all(_is_number(cell) for cell in column) for column in zip(*rows, strict=True)] or [False] * len(
        answer.columns
    )
    widths = [max(map(len, column)) for column in zip(answer.columns, *rows, strict=True)]
    for row in (answer.columns, *rows):
        cells = zip(row, widths, right, strict=True)
        line = "  ".join(cell.rjust(width) if is_right else cell.ljust(width) for cell, width, is_right in cells)
        out.write(line.rstrip() + "\n")
    out.write(f"({len(rows):,} row{'' if len(rows) == 1 else 's'})\n")


def _cell(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else _text(value)
    # Texts of clients stand in logs: what would move the cursor is shown, not sent to the terminal.
    text = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    return text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"


def _is_number(cell: str) -> bool:
    try:
        float(cell or "0")
    except ValueError:
        return False
    return True


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (list, dict, tuple)):
        return json.dumps(_json(value), ensure_ascii=False)
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _json(value: Any) -> Any:
    """A value as JSON has it. Instants are ISO texts; what is no number in JSON (NaN, infinity) is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [_json(part) for part in value]
    if isinstance(value, dict):
        return {str(key): _json(part) for key, part in value.items()}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (str, int, bool)) or value is None:
        return value
    if isinstance(value, Decimal):
        return float(value)
    return value.isoformat() if isinstance(value, date) else str(value)
