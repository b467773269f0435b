"""`tailrace bench model`: what a model does with the cores of this machine, without Redis and HTTP."""

import asyncio
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from bench.bare import Crew
    from bench.bare_cells import Cell, Way
    from bench.bare_protocol import Loaded, Setup

INTERRUPTED = 130


class CannotBegin(click.ClickException):
    """Nothing was measured, and this line says why."""

    exit_code = 2


class Numbers(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """Whole numbers from 1 with commas between, as a sorted tuple."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            numbers = sorted({int(word) for word in value.split(",")})
        except ValueError:
            numbers = [0]
        if numbers[0] < 1:
            self.fail(f"{value!r}: write whole numbers from 1 on with commas between, such as 1,2", param, ctx)
        return tuple(numbers)


@click.command(name="model", short_help="Measure what a model does with the cores of this machine.")
@click.argument("model", metavar="MODEL")
@click.option(
    "--model-repository",
    default="",
    envvar="TAILRACE_MODEL_REPOSITORY",
    metavar="DIR",
    help="Directory NAME/VERSION/ of models; without it, the demo models.",
)
@click.option("--workers", type=Numbers(), metavar="N,N", help="Numbers of worker processes to try.")
@click.option(
    "--threads",
    type=Numbers(),
    metavar="N,N",
    help="Numbers of torch threads of each to try. What does not fit the cores is left out.  "
    "[default: 1 x 1, and every way to use all cores]",
)
@click.option("--batches", type=Numbers(), metavar="N,N", default="1,2,4,8,16,32", show_default=True,
              help="Batch sizes, as far as the model allows.")  # fmt: skip
@click.option(
    "--seconds",
    default=2.0,
    show_default=True,
    type=click.FloatRange(0.01, 600),
    help="How long each figure is measured in each round.",
)
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 100), help="How often; medians count.")
@click.option(
    "--data",
    default="",
    metavar="FILE.jsonl",
    help='Texts from lines {"text": "..."}, for a model with one input of BYTES, instead of made-up ones.',
)
@click.option(
    "--order",
    default="arrival",
    show_default=True,
    type=click.Choice(["arrival", "sorted"]),
    help="Batches of requests as they come, or of requests of like size: the difference is what padding costs.",
)
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0), help="Of made-up texts.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write all figures, with commit and machine.")  # fmt: skip
def bench_model_command(model: str, json_file: Path | None, **given: Any) -> None:
    """Measure what MODEL (NAME or NAME/VERSION) does with the cores of this machine, without Redis and HTTP.

    For each number of worker processes and of torch threads of each, as far as the cores reach, and for each batch
    size: requests a second of all processes together, and ms of a pass. Passes are those of a worker, from decoded
    requests to encoded answers. All processes measure at the same time, and the ways take turns in each round.

    \b
    Example:
      tailrace bench model minilm
      tailrace bench model minilm --data texts.jsonl --order sorted --batches 1,8
    """
    from bench.errors import CannotMeasure

    try:
        if json_file is not None and not json_file.absolute().parent.is_dir():
            raise CannotMeasure(f"--json: there is no folder {json_file.parent}")
        found = asyncio.run(_measure(_setup(model, given), given))
    except CannotMeasure as e:
        raise CannotBegin(str(e)) from e
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    figures = _report(*found)
    if json_file is not None:
        _write(json_file, given, figures)
        click.echo(f"\nwritten to {json_file}")


def _ways(given: dict[str, Any], cores: int) -> "list[Way]":
    """The ways to measure. Raises CannotMeasure when none fits."""
    from bench.bare_cells import ways
    from bench.errors import CannotMeasure

    chosen = ways(cores, workers=given["workers"] or (), threads=given["threads"] or ())
    if not chosen:
        raise CannotMeasure(
            f"this machine lets us use {cores} cores; choose --workers and --threads whose product is not more"
        )
    return chosen


def _setup(name: str, given: dict[str, Any]) -> "Setup":
    from bench.bare_protocol import Setup

    # Absolute, so that messages say where it was looked for.
    data, repository = (str(Path(given[key]).absolute()) if given[key] else "" for key in ("data", "model_repository"))
    return Setup(repository=repository, models=(name,), data=data, order=given["order"], seed=given["seed"])


async def _measure(setup: "Setup", given: dict[str, Any]) -> "tuple[Crew, Loaded, list[Cell]]":
    from rich.console import Console

    from bench.bare import Crew, batch_sizes, measure
    from bench.bare_memory import most_workers
    from bench.errors import CannotMeasure
    from shared.vitals import usable_cores

    cores = usable_cores()
    ways = _ways(given, cores)
    console = Console(stderr=True)
    with console.status("loading the model") as status:
        async with Crew(setup, cores=cores) as crew:
            [model] = crew.models
            fitting = [way for way in ways if way.workers <= most_workers(crew.rss_bytes, running=1)]
            if not fitting:
                raise CannotMeasure(
                    f"a process with this model takes {crew.rss_bytes >> 20} MiB; there is no memory for more of them"
                )
            sizes = batch_sizes(model, given["batches"])
            planned_s = len(fitting) * len(sizes) * given["rounds"] * given["seconds"]
            cells = await measure(
                crew,
                model.label,
                fitting,
                sizes,
                rounds=given["rounds"],
                length_s=given["seconds"],
                progress=lambda text: status.update(f"{text} (about {planned_s:.0f} s in all)"),
            )
            return crew, model, cells


def _report(crew: "Crew", model: "Loaded", cells: "list[Cell]") -> dict[str, Any]:
    """Print all of it; returns the figures for JSON."""
    from rich.console import Console

    from bench.bare_cells import best_rates, choose
    from bench.bare_report import figures, print_cells, verdict

    choice = choose({model.label: best_rates(cells)})
    click.echo(
        f"{model.label} on {crew.cores} cores, torch {crew.torch}; a process takes {crew.rss_bytes >> 20} MiB\n"
        f"inputs: {model.inputs}\n"
    )
    print_cells(Console(), cells, cores=crew.cores)
    click.echo(f"\n{verdict(cells, choice)}")
    return figures(model, cells, choice) | {"cores": crew.cores, "torch": crew.torch, "rss_bytes": crew.rss_bytes}


def _write(path: Path, given: dict[str, Any], figures: dict[str, Any]) -> None:
    from bench.about import about

    command = shlex.join(["tailrace", *sys.argv[1:]])
    text = json.dumps(
        {"about": about(command, packages=("torch", "numpy")), "settings": given, "results": figures}, indent=1
    )
    try:
        path.write_text(text + "\n")
    except OSError as e:
        raise CannotBegin(f"--json {path} cannot be written: {e.strerror}") from e
