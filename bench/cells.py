"""What the scripts do with what they measured in rounds: cells, dicts ready for JSON, each one thing in one round."""

import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.about import about

WIDTH = 110

Cell = dict[str, Any]


def of_results(results: Mapping[str, Any]) -> Cell:
    """The cell of a run of our generator, from the figures that it writes as JSON (`results.Results.to_json`)."""
    latency_ns, generator = results["latency_ns"], results["generator"]
    return {
        "per_s": results["per_s"],
        "requests": results["requests"],
        "p50_ms": latency_ns["p50"] / 1e6,
        "p99_ms": latency_ns["p99"] / 1e6,
        "max_ms": latency_ns["max"] / 1e6,
        "errors": results["failed"] + results["unfinished"],
        "late_p99_ms": generator["late_ns"]["p99"] / 1e6,
        "generator_cores": generator["cores"],
        "warnings": generator["warnings"],
    }


def of(cells: Iterable[Cell], **wanted: Any) -> list[Cell]:
    """The cells that have all these values."""
    return [c for c in cells if all(c.get(key) == value for key, value in wanted.items())]


def median(cells: Sequence[Cell], key: str) -> float:
    """Of those cells that have the figure; nan when none has."""
    found = [float(c[key]) for c in cells if c.get(key) is not None]
    return statistics.median(found) if found else float("nan")


def shown(cells: Sequence[Cell], key: str) -> str:
    """The median for people; nothing when no cell has the figure."""
    value = median(cells, key)
    return "" if value != value else figure(value)


def spread(cells: Sequence[Cell], key: str) -> str:
    """The median with the least and the greatest, for people."""
    found = [float(c[key]) for c in cells if c.get(key) is not None]
    if len(found) < 2:
        return shown(cells, key)
    return f"{figure(statistics.median(found))} ({figure(min(found))} to {figure(max(found))})"


def total(cells: Sequence[Cell], key: str) -> int:
    """The sum, of errors for example."""
    return int(sum(c.get(key) or 0 for c in cells))


def figure(value: float) -> str:
    """About three digits."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def console() -> Console:
    """Where figures are printed; wide enough for every table when it is no terminal."""
    return Console(width=None if sys.stdout.isatty() else WIDTH)


def table(*columns: str) -> Table:
    """A plain one; all but the first column are figures."""
    made = Table(box=None, pad_edge=False)
    made.add_column(columns[0], no_wrap=True)
    for name in columns[1:]:
        made.add_column(name, justify="right", no_wrap=True)
    return made


def print_warnings(console: Console, cells: Sequence[Cell]) -> None:
    """Why figures may say more of the load generator than of the server, each once."""
    for warning in dict.fromkeys(w for c in cells for w in c.get("warnings", ())):
        console.print(f"warning: {warning}", markup=False)


def finish(
    console: Console, out: Path | None, module: str, settings: Mapping[str, Any], cells: Sequence[Cell], **more: Any
) -> None:
    """Write everything with its circumstances to `out`, if there is one."""
    if out is None:
        return
    told = about(f"python -m {module} " + " ".join(sys.argv[1:])) | {"settings": dict(settings)}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"about": told, **more, "cells": cells}, indent=1, default=str) + "\n")
    console.print(f"written to {out}")
