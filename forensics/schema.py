"""The log's records as SQL columns: their types, and the defaults of fields that a line leaves out.

Everything is made from `shared/events.py`, so a field that is added there is a column here. A line of a newer version
may have more fields: they are passed over. A line of an older one lacks some: they have their defaults.
"""

from dataclasses import dataclass
from types import UnionType
from typing import Any, get_args, get_origin

import msgspec

from forensics.load import TAGS
from shared.events import Envelope

_SCALARS = {str: "VARCHAR", int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN"}
UNREAD = "unread"
"""What could not be read, beside the records by their tags."""


@dataclass(frozen=True, slots=True)
class Column:
    """A field as a column. `default` is an SQL literal; None when the field is `required`."""

    name: str
    type: str
    default: str | None

    @property
    def required(self) -> bool:
        """True when a line without this field is no record."""
        return self.default is None

    @property
    def quoted(self) -> str:
        """The name as SQL takes it: some fields are named like keywords."""
        return f'"{self.name}"'

    @property
    def filled(self) -> str:
        """An expression: the value, or the default where the line left it out."""
        if self.default in (None, "NULL"):
            return self.quoted
        return f"coalesce({self.quoted}, {self.default})"


def sql_type(annotation: Any) -> str:
    """The column type of a field's type. Raises TypeError for one that has none."""
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is UnionType and len(parts) == 2 and type(None) in parts:
        return sql_type(next(part for part in parts if part is not type(None)))
    if origin is list:
        return f"{sql_type(parts[0])}[]"
    if origin is dict and Any in parts:
        return "JSON"
    if origin is dict:
        return f"MAP({sql_type(parts[0])}, {sql_type(parts[1])})"
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        fields = (f"{f.name} {sql_type(f.type)}" for f in msgspec.structs.fields(annotation))
        return f"STRUCT({', '.join(fields)})"
    raise TypeError(f"no column type stands for {annotation!r}")


def _default(f: msgspec.structs.FieldInfo, kind: str) -> str | None:
    value = f.default if f.default_factory is msgspec.NODEFAULT else f.default_factory()
    if value is msgspec.NODEFAULT:
        return None
    if value is None:
        return "NULL"
    if isinstance(value, dict):
        return "'{}'::JSON" if kind == "JSON" else f"MAP {{}}::{kind}"
    if isinstance(value, list):
        return f"[]::{kind}"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).lower()


def columns_of(kind: type[msgspec.Struct]) -> tuple[Column, ...]:
    """The columns of a record, in the order of its fields."""
    return tuple(Column(f.name, sql_type(f.type), _default(f, sql_type(f.type))) for f in msgspec.structs.fields(kind))


ENVELOPE = columns_of(Envelope)
RECORDS: dict[str, tuple[Column, ...]] = {tag: columns_of(kind) for tag, kind in TAGS.items()}
"""The columns of each record by its tag, without the envelope's."""
IDENTITY = ("clock", "pid", "proc", "inst", "seq", "mono")
"""What no two lines have in common."""


def every_column() -> dict[str, Column]:
    """The columns of all records by name, the envelope's first: each name must have one type.

    Raises TypeError when two records disagree on the type of a name.
    """
    found: dict[str, Column] = {}
    for column in (*ENVELOPE, *(column for columns in RECORDS.values() for column in columns)):
        if found.setdefault(column.name, column).type != column.type:
            raise TypeError(f"{column.name} is {column.type} in one record and {found[column.name].type} in another")
    return found


def is_record() -> str:
    """An SQL condition over a line's columns: it has a known tag, and everything that its record must have."""
    envelope = " AND ".join(f"{c.quoted} IS NOT NULL" for c in ENVELOPE)
    cases = []
    for tag, columns in RECORDS.items():
        must = " AND ".join(f"{c.quoted} IS NOT NULL" for c in columns if c.required) or "true"
        cases.append(f"WHEN '{tag}' THEN {must}")
    return f"({envelope} AND CASE t {' '.join(cases)} ELSE false END)"
