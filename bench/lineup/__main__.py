"""`python -m bench.lineup`: plan, record and score a lineup."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from bench.about import about
from bench.lineup import calibration, labels, leak, recorder, remedies, runs, score
from bench.lineup.adapter import COMMAND, ByCommand
from bench.lineup.judge import CONFIDENT
from bench.lineup.runs import Run, Seconds
from bench.lineup.scenario import DEVELOPMENT, ScenarioError
from shared import humanlog

Command = Callable[..., Any]


class Phases(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """BASELINE,FAULT,RECOVERY in seconds."""

    name = "b,f,r"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Seconds:
        if isinstance(value, Seconds):
            return value
        try:
            baseline, fault, recovery = map(float, str(value).split(","))
            return Seconds(baseline, fault, recovery)
        except ValueError:
            self.fail(f"{value!r}: write three numbers of seconds, such as 15,20,10", param, ctx)


class Shard(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """I/N: the I-th of N parts."""

    name = "i/n"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        try:
            number, count = map(int, str(value).split("/"))
        except ValueError:
            number = count = 0
        if not 1 <= number <= count:
            self.fail(f"{value!r}: write for example 1/4, the first of four parts", param, ctx)
        return number, count


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def cli() -> None:
    """Measure how often `tailrace diagnose` is right."""


def of_a_set(command: Command) -> Command:
    """The options that say which runs a set has."""
    for decorate in reversed(
        (
            click.argument("scenarios", nargs=-1, metavar="[SCENARIO]..."),
            click.option(
                "--held-out", "secret", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                help="File with the secret of a held-out set; without it, the development set.",
            ),
            click.option("--count", default=2, show_default=True, help="Runs a scenario of a held-out set."),
            click.option("--elsewhere", is_flag=True, help="On a background that development does not know."),
            click.option("--twins", is_flag=True, help="And each kind of traffic once with nothing injected."),
            click.option(
                "--seconds", type=Phases(), default="15,20,10", show_default=True,
                help="Baseline, fault and recovery.",
            ),
        )
    ):  # fmt: skip
        command = decorate(command)
    return command


def _set(
    scenarios: tuple[str, ...], secret: Path | None, count: int, elsewhere: bool, twins: bool, seconds: Seconds
) -> list[Run]:
    try:
        if secret is None:
            wanted = runs.development(scenarios, seconds=seconds)
            return runs.with_twins(wanted) if twins else wanted
        key = secret.read_bytes().strip()
        if not key or key == DEVELOPMENT:
            raise click.UsageError(f"{secret} holds no secret; write 32 random bytes into it")
        wanted = runs.held_out(key, scenarios, count=count, elsewhere=elsewhere, seconds=seconds)
        return runs.with_twins(wanted, key) if twins else wanted
    except ScenarioError as e:
        raise click.UsageError(str(e)) from e


@cli.command(short_help="Show which runs a set has, and the hash of its manifest.")
@of_a_set
@click.option("--manifest", type=click.Path(dir_okay=False, path_type=Path), help="Where to write the manifest.")
def plan(
    scenarios: tuple[str, ...], secret: Path | None, count: int, elsewhere: bool, twins: bool, seconds: Seconds,
    manifest: Path | None,
) -> None:  # fmt: skip
    """Show which runs a set has, and the hash of its manifest.

    A SCENARIO is a path (FILE.py), the name of a file in bench/lineup/injectors, or a cause (B1); without any, all.
    """
    wanted = _set(scenarios, secret, count, elsewhere, twins, seconds)
    made = runs.manifest(wanted)
    for run in wanted:
        click.echo(f"{run.id}  {run.path.stem:24} {run.background.name:10} share {run.share:.2f}")
    click.echo(f"{len(wanted)} runs of {seconds.total:.0f} s; manifest sha256 {made['sha256']}")
    if manifest:
        manifest.write_text(json.dumps(made, indent=1) + "\n")


@cli.command(short_help="Record the runs of a set.")
@of_a_set
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder of the set.")
@click.option("--shard", type=Shard(), default="1/1", show_default=True, help="Only this part of the runs.")
@click.option("--only", multiple=True, help="Only the runs whose id begins so, or that are on this background.")
@click.option("--share", type=float, help="Only the runs of this strength, 0 (mild) to 1 (strong).")
@click.option("--again", is_flag=True, help="Record also what was recorded before.")
def record(
    scenarios: tuple[str, ...], secret: Path | None, count: int, elsewhere: bool, twins: bool, seconds: Seconds,
    out: Path, shard: tuple[int, int], only: tuple[str, ...], share: float | None, again: bool,
) -> None:  # fmt: skip
    """Record the runs of a set, one after the other; what is there already is left out, so it may be broken off.

    A SCENARIO is a path (FILE.py), the name of a file in bench/lineup/injectors, or a cause (B1); without any, all.
    """
    import uvloop

    humanlog.configure("lineup", level="error")
    whole = _set(scenarios, secret, count, elsewhere, twins, seconds)
    wanted = [run for run in runs.shard_of(whole, *shard) if share is None or run.share == share]
    if only:
        wanted = [run for run in wanted if run.id.startswith(only) or run.background.name in only]
    out.mkdir(parents=True, exist_ok=True)
    made = runs.manifest(whole)
    click.echo(f"manifest sha256 {made['sha256']}")
    speed = calibration.measure()
    failed = uvloop.run(recorder.record_all(wanted, out, speed, again=again, say=click.echo))
    sys.exit(1 if failed else 0)


@cli.command(name="score", short_help="Diagnose every log of a set, and compare with the truth.")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--command", default="", help="How to diagnose; {logs} is the folder. Default: tailrace diagnose.")
@click.option("--baselines-only", is_flag=True, help="Only the rules that a diagnosis must beat.")
@click.option("--with-flagged", is_flag=True, help="Also the runs in which the machine was not ours.")
@click.option("--confident", default=CONFIDENT, show_default=True, help="From here on a finding counts as an alarm.")
@click.option("--only", multiple=True, help="Only this cause, or this run.")
@click.option("--without", multiple=True, metavar="TYPE", help="Hide this type of record, such as evt or res.")
@click.option("--procs", multiple=True, metavar="KIND", help="Show the logs of these processes only, such as gateway.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write OUT.json and OUT.md.")
def score_command(
    directory: Path, command: str, baselines_only: bool, with_flagged: bool, confident: float, only: tuple[str, ...],
    without: tuple[str, ...], procs: tuple[str, ...], out: Path | None,
) -> None:  # fmt: skip
    """Diagnose every log of a set, and compare with the truth; the baselines beside it."""
    diagnose = None if baselines_only else ByCommand(tuple(shlex.split(command)) if command else COMMAND)
    scores = score.score(
        directory, diagnose, with_flagged=with_flagged, confident=confident, only=only, without=without,
        procs=procs, say=lambda text: click.echo(text, err=True),
    )  # fmt: skip
    told = score.to_json(scores)
    click.echo(score.to_markdown(told))
    for run, why in list(scores.failed.items())[:3]:
        click.echo(f"no verdict of {run}: {why}", err=True)
    if out:
        score.write(told, out)


@cli.command(name="remedies", short_help="Do the cures work that a diagnosis prints?")
@click.argument("scenarios", nargs=-1)
@click.option("--share", default=1.0, show_default=True, help="How strong, 0 (mild) to 1.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Where to write the JSON.")
def remedies_command(scenarios: tuple[str, ...], share: float, out: Path | None) -> None:
    """Inject each fault that has a cure, apply the cure while it goes on, and compare with what was before."""
    import uvloop

    humanlog.configure("lineup", level="error")
    known: dict[str, runs.Run] = {}
    for run in runs.development(scenarios):
        if run.share == share and run.scenario.cure is not None:
            known.setdefault(run.scenario.cause, run)
    tried = uvloop.run(remedies.try_all(list(known.values()), calibration.measure(), say=click.echo))
    if out:
        told = {"about": about("python -m bench.lineup " + " ".join(sys.argv[1:]))}
        out.write_text(json.dumps(told | {"cures": [one.to_json() for one in tried]}, indent=1) + "\n")


@cli.command(name="leak", short_help="Does any text in the logs tell the label?")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
def leak_command(directory: Path) -> None:
    """Let a classifier guess each run's cause from names, paths and other free texts: it must not beat chance."""
    truths = labels.read_all(directory)
    words = leak.in_logs({truth.run: directory / "logs" / truth.run for truth in truths})
    found = leak.test([words[truth.run] for truth in truths], [truth.cause for truth in truths])
    click.echo(
        f"{found.accuracy:.1%} of {len(truths)} labels guessed from texts, {found.by_chance:.1%} with shuffled labels; "
        f"p = {found.p_value:.3f}"
    )
    if found.is_there:
        click.echo(f"the labels leak, most of all by {', '.join(found.telling)}")
        sys.exit(1)


if __name__ == "__main__":
    cli()
