"""The ledger for people: a list, and one entry whole, as text or as Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from forensics.compare_report import ms
from forensics.ledger import Ledger, Numbered
from forensics.report import time_text, visible
from forensics.run_figures import quantile_name

COMMIT_CHARS = 10


def to_json(n: Numbered) -> dict[str, Any]:
    """An entry as a value ready for JSON, with its number and id."""
    return {"number": n.number, "id": n.id, **msgspec.to_builtins(n.entry)}


def listing(ledger: Ledger, *, markdown: bool) -> Iterator[str]:
    """A line for each entry, the oldest first."""
    if markdown:
        yield "| # | date | conclusion | measured | commit | title |"
        yield "|---|---|---|---|---|---|"
    else:
        yield f"{'#':>3} {'date':<10} {'conclusion':<10} {'measured':<38} {'commit':<16} title"
    for n in ledger.entries:
        e = n.entry
        cells = (
            str(n.number),
            time_text(e.at_us)[:10],
            e.conclusion.value,
            _measured(e.comparison),
            _commit(n),
            e.title,
        )
        if markdown:
            yield f"| {' | '.join(map(_cell, cells))} |"
        else:
            number, date, conclusion, measured, commit, title = cells
            yield f"{number:>3} {date:<10} {conclusion:<10} {measured:<38} {visible(commit):<16} {visible(title)}"


def shown(n: Numbered, *, markdown: bool) -> Iterator[str]:
    """One entry whole."""
    e = n.entry
    title = f"{n.number}. {e.title}"
    yield f"### {_cell(title)}" if markdown else visible(title)
    yield ""
    commit = _commit(n)
    yield (
        f"{time_text(e.at_us)}  {e.conclusion.value}"
        + (f"  commit {visible(commit)}" if commit else "")
        + f"  id {n.id}"
    )
    for line in e.note.splitlines():
        yield _cell(line) if markdown else visible(line)
    if e.comparison is None:
        yield ""
        yield "Nothing was measured."
    else:
        yield ""
        yield from _comparison(e.comparison, markdown=markdown)
    facts = {f"runs of {side.upper()}": values for side, values in e.runs.items()} | {"noted on": e.machine}
    if any(facts.values()):
        yield ""
    for name, values in facts.items():
        if values:
            text = ", ".join(f"{key} {value}" for key, value in values.items())
            yield f"{name}: {_cell(text) if markdown else visible(text)}"


def _comparison(c: Mapping[str, Any], *, markdown: bool) -> Iterator[str]:
    for side in ("a", "b"):
        about = c.get(side, {})
        what = "slices" if c.get("sliced") else "runs"
        told = f"{side.upper()}: {about.get('name', '')}, {about.get('runs', '?')} {what}"
        yield _cell(told) if markdown else visible(told)
        if markdown:
            yield ""
    head = ("", "A", "B", "B against A", f"{100 * c.get('confidence', 0.95):.4g} % interval", "p")
    rows = [_row(m) for m in c.get("measures", ())]
    if markdown:
        yield f"| {' | '.join(head)} |"
        yield "|---|---|---|---|---|---|"
        yield from (f"| {' | '.join(row)} |" for row in rows)
    else:
        widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
        for row in (head, *rows):
            first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            yield "  ".join([first.strip().ljust(widths[0]), *others]).rstrip()
    for warning in c.get("warnings", ()):
        yield ""
        yield f"Warning: {_cell(warning) if markdown else visible(warning)}."


def _row(m: Mapping[str, Any]) -> Sequence[str]:
    return (
        str(m["name"]), _value(m["unit"], m["a"]), _value(m["unit"], m["b"]), _change(m, m["change"]), _interval(m),
        f"{m['p']:.2g}",
    )  # fmt: skip


def _value(unit: str, value: float) -> str:
    if unit == "share":
        return f"{value:.3%}"
    return f"{value:,.1f} /s" if unit == "per_s" else f"{ms(value)} ms"


def _change(m: Mapping[str, Any], value: float) -> str:
    return f"{100 * value:+.1f} %" if m["relative"] else f"{100 * value:+.3f} points"


def _interval(m: Mapping[str, Any]) -> str:
    if m["lo"] is None or m["hi"] is None:
        return "too few runs"
    return f"{_change(m, m['lo'])} .. {_change(m, m['hi'])}"


def _measured(c: Mapping[str, Any] | None) -> str:
    """The quantile's change in one cell, with its interval."""
    if c is None:
        return "-"
    name = quantile_name(c.get("quantile", 0.99))
    for m in c.get("measures", ()):
        if m["name"] == name:
            return f"{name} {_change(m, m['change'])} ({_interval(m)})"
    return "-"


def _commit(n: Numbered) -> str:
    return n.entry.commit[:COMMIT_CHARS] + ("-dirty" if n.entry.commit and n.entry.dirty else "")


def _cell(text: str) -> str:
    """A text within a Markdown table or line: nothing of it is markup, nothing ends the cell."""
    text = visible(text.replace("\n", " "))
    return "".join(f"\\{char}" if char in "\\|`*_<>[]#" else char for char in text)
