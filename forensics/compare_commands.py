"""The command `compare`: two runs, two sets of runs, or two versions. The work is in modules that load on use."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forensics.log_commands import DEFAULT

if TYPE_CHECKING:
    from forensics.compare import Comparison
    from forensics.run_folders import Asked

Command = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Choices:
    """What the options of a comparison say."""

    quantile: float = 0.99
    model: str = ""
    skip_s: float = 0.0
    slices: int | None = None
    confidence: float = 0.95


def comparison_options(command: Command) -> Command:
    """The options that say how two sides are compared; the command gets them as one `Choices`."""
    options = (
        click.option(
            "--quantile", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=0.99, show_default=True,
            help="The quantile whose parts are shown.",
        ),
        click.option("--model", default="", metavar="NAME", help="Only requests of this model."),
        click.option(
            "--skip-s", type=click.FloatRange(0), default=0.0, metavar="SECONDS",
            help="Leave out the first seconds of each run: its warm-up.",
        ),
        click.option(
            "--slices", type=click.IntRange(2, 100), default=None, metavar="N",
            help="Into how many slices of time a single run or a version is cut.  [default: 4 to 8, by its requests]",
        ),
        click.option(
            "--confidence", type=click.FloatRange(0.5, 0.999), default=0.95, show_default=True,
            help="Of the intervals. A condition fails when the limit of this interval shows the breach.",
        ),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@click.command(name="compare", short_help="Compare two runs, sets of runs, or versions; a verdict for CI.")
@click.argument("paths", metavar="[A B | LOGS]...", nargs=-1, type=str)
@click.option("--a", "of_a", multiple=True, metavar="DIR", help="A run of side A; repeat it for more runs.")
@click.option("--b", "of_b", multiple=True, metavar="DIR", help="A run of side B.")
@click.option(
    "--by", type=click.Choice(["version"]), default=None,
    help="Compare two versions of a model within one set of logs; --a and --b name them when there are more than two.",
)  # fmt: skip
@comparison_options
@click.option(
    "--fail-if", "conditions", multiple=True, metavar="CONDITION",
    help="Exit with 1 when the confidence limit shows this: p99>+5%, p99>100ms, errors>1%, throughput<-5%.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object; times in ns, changes as fractions.")
@click.pass_context
def compare_command(
    ctx: click.Context,
    /,
    paths: tuple[str, ...],
    of_a: tuple[str, ...],
    of_b: tuple[str, ...],
    by: str | None,
    conditions: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Compare two runs, two sets of runs or two versions: how much, how sure, and where the difference is.

    A and B are folders with the logs of a run, folders of such folders, or patterns of these ('runs/new-*'). Each run
    counts as one observation, whatever its length: record 8 runs a side, in turns (A B B A). A single run a side is
    cut into slices of time, with a warning.

    \b
    Exits with 1 when a --fail-if condition is shown to hold by the confidence limit (not by the estimate alone), with
    2 when nothing can be compared, or when there are too few runs for a condition to ever fail, else with 0.

    \b
    Example:
      tailrace compare runs/old runs/new --fail-if 'p99>+5%'
      tailrace compare --a old-1 --a old-2 --b new-1 --b new-2 --quantile 0.999
      tailrace compare --by version --a 1 --b 2 .tailrace/logs
    """
    from forensics import compare_report
    from forensics.fail_if import judge, parse_condition

    choices = Choices(**options)
    try:
        asked_for = [parse_condition(text) for text in conditions]
    except ValueError as e:
        raise click.BadParameter(str(e), ctx, param_hint="--fail-if") from e
    more = [c.quantile for c in asked_for if c.quantile is not None]
    if by:
        found = compare_versions(paths, of_a, of_b, choices, more)
    else:
        a, b = _two_sides(paths, of_a, of_b)
        found = compare_paths(a, b, choices, more)
    judged = [judge(condition, found) for condition in asked_for]
    if as_json:
        from msgspec import json

        click.echo(json.encode(compare_report.to_json(found, judged)))
    else:
        for line in compare_report.lines(found, judged):
            click.echo(line)
    if undecided := [j.condition.text for j in judged if not j.decidable]:
        # A gate that cannot fail must not look like one that passed.
        raise click.UsageError(
            f"with {len(found.a)} and {len(found.b)} runs, {', '.join(undecided)} can never be shown: record more "
            "runs, or lower --confidence"
        )
    ctx.exit(1 if any(j.breached for j in judged) else 0)


def compare_paths(a: Sequence[str], b: Sequence[str], choices: Choices, more: Sequence[float] = ()) -> "Comparison":
    """Compare the runs that the paths name; a single one a side is sliced. Bad input ends the command with status 2."""
    from forensics.compare import compare
    from forensics.run_folders import read_folder, read_slices, runs_in
    from forensics.store import LogError

    try:
        folders = runs_in(a), runs_in(b)
        places = [{path.resolve(): f.name for f in side for path in f.paths} for side in folders]
        if both := places[0].keys() & places[1].keys():
            twice = sorted({places[0][path] for path in both})
            raise LogError(f"{', '.join(twice)} is on both sides; a run cannot be compared with itself")
        sliced = len(folders[0]) == len(folders[1]) == 1
        if choices.slices and not sliced:
            raise LogError("--slices is for a single run a side; several runs are compared as they are")
        asked = _asked(choices)
        if sliced:
            runs = [read_slices(side[0], asked, choices.slices) for side in folders]
        else:
            runs = [[read_folder(folder, asked) for folder in side] for side in folders]
    except (LogError, ValueError) as e:
        raise click.UsageError(str(e)) from e
    names = ", ".join(a), ", ".join(b)
    return compare(
        *runs, names=names, quantile_of=choices.quantile, more_quantiles=more, confidence=choices.confidence,
        sliced=sliced,
    )  # fmt: skip


def compare_versions(
    logs: Sequence[str], of_a: Sequence[str], of_b: Sequence[str], choices: Choices, more: Sequence[float] = ()
) -> "Comparison":
    """Compare two versions of a model within one set of logs. Bad input ends the command with status 2."""
    from forensics.compare import compare
    from forensics.run_folders import Folder, read_versions
    from forensics.store import LogError

    paths = tuple(map(Path, logs)) or (DEFAULT,)
    folder = Folder(", ".join(map(str, paths)), paths)
    try:
        found = read_versions(folder, lambda known: _versions(known, of_a, of_b), _asked(choices), choices.slices)
    except (LogError, ValueError) as e:
        raise click.UsageError(str(e)) from e
    names = f"{found.model} version {found.a_version}", f"{found.model} version {found.b_version}"
    return compare(
        found.a, found.b, names=names, quantile_of=choices.quantile, more_quantiles=more,
        confidence=choices.confidence, sliced=True,
    )  # fmt: skip


def _asked(choices: Choices) -> "Asked":
    from forensics.run_folders import Asked

    return Asked((choices.quantile,), choices.model, choices.skip_s)


def _two_sides(paths: Sequence[str], of_a: Sequence[str], of_b: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    if (of_a or of_b) and not paths:
        if of_a and of_b:
            return of_a, of_b
        raise click.UsageError(f"--{'b' if of_a else 'a'} is missing: a comparison has two sides")
    if len(paths) == 2 and not of_a and not of_b:
        return paths[:1], paths[1:]
    raise click.UsageError("name two sides: A B, or --a DIR and --b DIR (each as often as you like), or --by version")


def _versions(known: Sequence[tuple[str, str]], of_a: Sequence[str], of_b: Sequence[str]) -> tuple[str, str, str]:
    """The model and its two versions, the one asked for first as A. Raises ValueError."""
    told = ", ".join(f"{model}/{version}" for model, version in known) or "none"
    if len(of_a) > 1 or len(of_b) > 1 or len(of_a) != len(of_b):
        raise ValueError("with --by version, name one version with --a and one with --b")
    chosen = (of_a[0], of_b[0]) if of_a else None
    fitting: dict[str, list[str]] = {}
    for model, version in known:
        fitting.setdefault(model, []).append(version)
    fitting = {
        model: versions
        for model, versions in fitting.items()
        if (set(chosen) <= set(versions) and chosen[0] != chosen[1] if chosen else len(versions) > 1)
    }
    if len(fitting) != 1:
        want = f"has the versions {chosen[0]} and {chosen[1]}" if chosen else "has two versions"
        many = "more than one model" if fitting else "no model"
        raise ValueError(f"{many} {want}; there are {told}. Choose with --model, --a and --b")
    ((model, versions),) = fitting.items()
    if chosen is None and len(versions) != 2:
        raise ValueError(f"{model} has the versions {', '.join(versions)}; name two of them with --a and --b")
    return (model, *(chosen or (versions[0], versions[1])))
