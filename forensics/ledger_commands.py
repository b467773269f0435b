"""The commands `ledger add`, `list` and `show`. The work is in `ledger.py`."""

import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forensics.compare_commands import Choices, compare_paths, comparison_options
from shared import clock

if TYPE_CHECKING:
    from forensics.ledger import Ledger

Command = Callable[..., Any]

file_option = click.option(
    "--file", "path", type=click.Path(path_type=Path, dir_okay=False), default=Path("tailrace-ledger.jsonl"),
    show_default=True, help="The ledger.",
)  # fmt: skip
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object a line for each entry.")
format_option = click.option(
    "--format", "shape", type=click.Choice(["text", "markdown"]), default="text", show_default=True,
    help="markdown: for a pull request.",
)  # fmt: skip


@click.group(name="ledger", short_help="Keep each optimisation tried, its measurement and its conclusion.")
def ledger_command() -> None:
    """Keep each optimisation tried, its measurement and its conclusion.

    The ledger is a file of JSON lines to be committed with your code: what was tried and did not help is tried again
    by the next person, unless it stands somewhere.
    """


@ledger_command.command(name="add", short_help="Note an optimisation; measures it when runs are named.")
@click.option("--title", required=True, help="What was tried, in one line.")
@click.option("--a", "of_a", multiple=True, metavar="DIR", help="The runs before, as `tailrace compare` takes them.")
@click.option("--b", "of_b", multiple=True, metavar="DIR", help="The runs after.")
@click.option(
    "--conclusion", type=click.Choice(["kept", "reverted", "undecided"]), required=True, help="What became of it."
)
@click.option("--note", default="", help="Why, and what else is worth knowing.")
@click.option("--commit", default=None, metavar="NAME", help="The commit that was measured.  [default: the one here]")
@comparison_options
@file_option
@json_option
def add_command(
    title: str,
    of_a: tuple[str, ...],
    of_b: tuple[str, ...],
    conclusion: str,
    note: str,
    commit: str | None,
    path: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """Note an optimisation: compares the runs, and stores the result with the commit and the machine.

    Without --a and --b it is noted as not measured. Says when the measurement does not support the conclusion.

    \b
    Example:
      tailrace ledger add --title 'Parcels of 32' --a runs/old --b runs/new --conclusion kept --note 'see #12'
    """
    from forensics import ledger, ledger_report
    from forensics.ledger import Conclusion, LedgerError

    if bool(of_a) != bool(of_b):
        raise click.UsageError(f"--{'b' if of_a else 'a'} is missing: a measurement has two sides")
    measured = compare_paths(of_a, of_b, Choices(**options)) if of_a else None
    here, dirty = _commit(path)
    try:
        new = ledger.entry(
            title, Conclusion(conclusion), at_us=clock.wall_us(), note=note, comparison=measured,
            commit=here if commit is None else commit, dirty=dirty if commit is None else False, machine=_machine(),
        )  # fmt: skip
        added = ledger.append(path, new)
        unread = ledger.read(path)
    except LedgerError as e:
        raise click.UsageError(str(e)) from e
    if as_json:
        _print_json([ledger_report.to_json(added)])
    else:
        click.echo(f"entry {added.number} of {path}")
        for line in ledger_report.shown(added, markdown=False):
            click.echo(line)
    _tell_unread(unread, path)
    if measured is not None and (doubt := ledger.doubt(Conclusion(conclusion), measured)):
        click.echo(f"note: {doubt}", err=True)


@ledger_command.command(name="list")
@file_option
@json_option
@format_option
def list_command(path: Path, as_json: bool, shape: str) -> None:
    """List all entries, the oldest first, each with what it measured."""
    from forensics import ledger_report

    found = _read(path)
    if as_json:
        _print_json([ledger_report.to_json(n) for n in found.entries])
    else:
        for line in ledger_report.listing(found, markdown=shape == "markdown"):
            click.echo(line)
    _tell_unread(found, path)


@ledger_command.command(name="show")
@click.argument("number", metavar="N")
@file_option
@json_option
@format_option
def show_command(number: str, path: Path, as_json: bool, shape: str) -> None:
    """Show one entry whole. N is its number, or its id."""
    from forensics import ledger_report
    from forensics.ledger import LedgerError

    found = _read(path)
    try:
        entry = found.find(number)
    except LedgerError as e:
        raise click.UsageError(str(e)) from e
    if as_json:
        _print_json([ledger_report.to_json(entry)])
    else:
        for line in ledger_report.shown(entry, markdown=shape == "markdown"):
            click.echo(line)
    _tell_unread(found, path)


def _read(path: Path) -> "Ledger":
    from forensics.ledger import LedgerError, read

    try:
        return read(path)
    except LedgerError as e:
        raise click.UsageError(str(e)) from e


def _tell_unread(found: "Ledger", path: Path) -> None:
    """What is damaged is told, and does not stand in the way of what is whole."""
    from forensics.report import visible

    for one in found.unread:
        click.echo(f"line {one.line} of {path} is passed over: {visible(one.why)}", err=True)


def _print_json(values: list[dict[str, Any]]) -> None:
    from msgspec import json

    for value in values:
        click.echo(json.encode(value))


def _commit(ledger: Path) -> tuple[str, bool]:
    """The commit of the repository that the ledger lies in, and whether anything but the ledger was changed since;
    empty without a repository."""
    folder = ledger.resolve().parent
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return "", False
    top = Path(_git(folder, "rev-parse", "--show-toplevel") or folder)
    but_the_ledger = f":(exclude,literal){os.path.relpath(ledger.resolve(), top)}"
    changed = _git(top, "status", "--porcelain", "--untracked-files=no", "--", ".", but_the_ledger)
    return commit, bool(changed)


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(
            ["git", *words], cwd=folder, env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"}, capture_output=True, text=True,
            check=False, timeout=30,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _machine() -> dict[str, Any]:
    """This machine, as far as it matters to a measurement."""
    from shared.vitals import usable_cores

    return {
        "host": platform.node(),
        "cpu": _cpu_name(),
        "cores": usable_cores(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
