"""The figures of a bare model for people, and as a value for JSON."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.bare_cells import ONE, TIE_SHARE, Cell, Choice, best_cell
from bench.bare_protocol import Loaded

PADDING_MIN = 0.0005
"""Less is not worth a column."""


def print_cells(console: Console, cells: Sequence[Cell], *, cores: int) -> None:
    """A table with a line for each way and batch size."""
    with_padding = any(cell.padding_share >= PADDING_MIN for cell in cells)
    table = Table(box=None, pad_edge=False)
    table.add_column("workers x threads")
    columns = ["batch", "requests/s", "least to most", "pass p50 ms", "p99 ms", "CPU"]
    for name in [*columns, "padding"] if with_padding else columns:
        table.add_column(name, justify="right")
    before = None
    for cell in cells:
        least, most = cell.per_s_range
        row = [str(cell.way) if cell.way != before else "", str(cell.batch), _rate(cell.per_s)]
        row += [f"{_rate(least)} to {_rate(most)}", f"{cell.pass_ms(50):.3f}", f"{cell.pass_ms(99):.3f}"]
        row.append(f"{cell.cores / cores:.0%}")
        table.add_row(*row, *([f"{cell.padding_share:.0%}"] if with_padding else []))
        before = cell.way
    console.print(table)


def verdict(cells: Sequence[Cell], choice: Choice) -> str:
    """The best way, by how much it beats 1 x 1, and why it was preferred."""
    cell = best_cell(c for c in cells if c.way == choice.way)
    workers, threads = choice.way
    told = f"Best: --workers {workers} --threads {threads}: {_rate(cell.per_s)} requests/s in batches of {cell.batch}"
    alone = [c for c in cells if c.way == ONE]
    if alone and choice.way != ONE:
        one = best_cell(alone)
        told += f", {cell.per_s / one.per_s:.2f} times 1 x 1 ({_rate(one.per_s)} in batches of {one.batch})"
    if choice.top == choice.way:
        why = "no other was as quick" if len({c.way for c in cells}) > 1 else "nothing else was measured"
    else:
        top = best_cell(c for c in cells if c.way == choice.top)
        why = (
            f"{choice.top} did {_rate(top.per_s)}, which is not more than {TIE_SHARE:.0%} better, "
            "and of those that are as good the fewest processes need the least memory"
        )
    return f"{told}.\nWhy: {why}."


def figures(model: Loaded, cells: Sequence[Cell], choice: Choice) -> dict[str, Any]:
    """Every figure, ready for JSON."""
    return {
        "model": model.label,
        "inputs": model.inputs,
        "best": {"workers": choice.way.workers, "threads": choice.way.threads},
        "cells": [cell.to_json() for cell in cells],
    }


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.1f}"
