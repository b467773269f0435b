"""The command line: one tree, its options made from the settings' declarations."""

import os
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

import click

from forensics.commands import audit_command, explain_command, requests_command
from forensics.compare_commands import compare_command
from forensics.correlate_command import correlate_command
from forensics.diagnose_command import diagnose_command
from forensics.ledger_commands import ledger_command
from forensics.log_commands import logs_command, sql_command
from shared.errors import SettingsError
from shared.settings import CommonSettings, GatewaySettings, WorkerSettings, load
from tailrace.bench_command import bench_command
from tailrace.dlq import dlq_command

Command = Callable[..., Any]
DATA_DIR = ".tailrace"
AUTO = -1
WORKERS_MAX = 256
LOG_LEVELS = ["debug", "info", "warning", "error"]


class WorkerCount(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """A number, or `auto`, which becomes AUTO."""

    name = "number or auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value in ("auto", AUTO):
            return AUTO
        try:
            return click.IntRange(0, WORKERS_MAX).convert(value, param, ctx)
        except click.BadParameter as e:
            self.fail(f"{e.message.rstrip('.')}; write a number up to {WORKERS_MAX}, or auto", param, ctx)


class WrongSettings(click.ClickException):
    """Exits with the status that tells a supervisor that another try would end the same way."""

    exit_code = 2


def settings_options(kind: type[CommonSettings]) -> Callable[[Command], Command]:
    """A click option for each setting. Values stay text here: `settings.load` checks them all together."""

    def decorate(command: Command) -> Command:
        command = click.option("--config", type=Path, help="TOML file with settings.")(command)
        for f in reversed(fields(kind)):
            flag = f"--{f.name.replace('_', '-')}"
            default = f.default if f.default != "" else "none"
            text = f"{f.metadata['help']}  [default: {default}; env: TAILRACE_{f.name.upper()}]"
            command = click.option(flag, f.name, metavar="VALUE", help=text)(command)
        return command

    return decorate


def _settings(kind: type[Any], flags: dict[str, Any]) -> Any:
    config = flags.pop("config", None)
    try:
        return load(kind, flags=flags, environ=os.environ, config=config)
    except SettingsError as e:
        raise WrongSettings(f"the settings are wrong:\n{e}") from e


def _run(run: Callable[[Any], int], settings: Any) -> NoReturn:
    """Run a process. What turns out wrong only then (a Redis that evicts) has the exit status of wrong settings."""
    try:
        status = run(settings)
    except SettingsError as e:
        raise WrongSettings(f"cannot start: {e}") from e
    sys.exit(status)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="tailrace")
def cli() -> None:
    """Serve PyTorch models through Redis Streams, and account for every millisecond of every request.

    Start with `tailrace up`: it runs an embedded Redis, a gateway and a worker, and prints a line to try.
    Then ask `tailrace explain ID` where the time of a request went.
    """


@cli.command(short_help="Take HTTP requests and answer them through the queue.")
@settings_options(GatewaySettings)
def gateway(**flags: Any) -> None:
    """Take HTTP requests (Open Inference Protocol) and answer them through the queue.

    Any number of gateways may share one Redis.
    """
    from gateway.main import main as run

    _run(run, _settings(GatewaySettings, flags))


@cli.command()
@settings_options(WorkerSettings)
def worker(**flags: Any) -> None:
    """Pull requests from the queue and run the models.

    Start as many as you like, on any machine that reaches the Redis; SIGTERM finishes what the worker holds and
    leaves without an error at any client.
    """
    settings = _settings(WorkerSettings, flags)
    # Read once, when torch loads its OpenMP: threads that spin while they wait steal the core from everybody else.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from worker.main import main as run

    _run(run, settings)


@cli.command(short_help="Run everything on this machine, until Ctrl-C.")
@click.option(
    "--workers",
    default="1",
    show_default=True,
    type=WorkerCount(),
    help="How many workers to run; auto measures at the first start which number of workers and of threads suits the "
    "models on this machine, and keeps the result in DATA_DIR.",
)
@click.option(
    "--gateways",
    envvar="TAILRACE_GATEWAYS",
    default=1,
    show_default=True,
    type=click.IntRange(1, 64),
    help="How many gateways share the port; one is busy at some thousand requests a second.",
)
@click.option(
    "--model-repository",
    default="",
    envvar="TAILRACE_MODEL_REPOSITORY",
    help="Directory NAME/VERSION/ of models; without it, the demo models.",
)
@click.option(
    "--redis",
    default="",
    envvar="TAILRACE_REDIS",
    help="URL of a running Redis; without it, an embedded one is started.",
)
@click.option("--host", default="127.0.0.1", envvar="TAILRACE_HOST", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=8000,
    envvar="TAILRACE_PORT",
    show_default=True,
    type=click.IntRange(0, 65535),
    help="TCP port; 0 takes a free one.",
)
@click.option("--data-dir", default=DATA_DIR, show_default=True, type=Path, help="Directory of the embedded Redis.")
@click.option(
    "--log-dir", type=Path, envvar="TAILRACE_LOG_DIR", help="Directory of the event logs.  [default: DATA_DIR/logs]"
)
@click.option(
    "--device",
    default="cpu",
    envvar="TAILRACE_DEVICE",
    show_default=True,
    help="Device of the workers: cpu, cuda, cuda:N, auto.",
)
@click.option(
    "--threads",
    default=0,
    envvar="TAILRACE_THREADS",
    type=click.IntRange(0),
    help="torch threads per worker.  [default: the cores left, shared evenly; with --workers auto, measured]",
)
@click.option(
    "--drain-s",
    default=30.0,
    type=click.FloatRange(0),
    envvar="TAILRACE_DRAIN_S",
    show_default=True,
    help="How long the requests in flight may take when it is told to stop.",
)
@click.option(
    "--log-level",
    default="info",
    envvar="TAILRACE_LOG_LEVEL",
    show_default=True,
    type=click.Choice(LOG_LEVELS),
    help="Logs for people.",
)
def up(**options: Any) -> None:
    """Run everything on this machine: Redis, a gateway and workers, each a process of its own, until Ctrl-C.

    Processes that die are started again. Ctrl-C or SIGTERM finishes the requests in flight, then stops all of it.
    """
    from tailrace import up as module

    # What the children would refuse is refused here, once, before anything starts.
    given = {name: options[name] for name in ("redis", "device", "log_dir") if options[name]}
    _settings(GatewaySettings, {k: str(v) for k, v in given.items() if k != "device"})
    _settings(WorkerSettings, {k: str(v) for k, v in given.items()})
    repository = options["model_repository"]
    if repository and not Path(repository).is_dir():
        raise WrongSettings(f"--model-repository: {repository} is no directory")
    choose_workers = options["workers"] == AUTO
    if choose_workers and options["device"] != "cpu":
        raise WrongSettings("--workers auto measures the cores of the CPU; with --device, write a number of workers")
    if choose_workers:
        options["workers"] = 1
    sys.exit(module.main(module.UpOptions(**options, choose_workers=choose_workers)))


@cli.command(short_help="Search your own Python's documentation by meaning.")
@click.option("--texts", default=1200, show_default=True, type=click.IntRange(10), help="How many docstrings to embed.")
@click.option(
    "--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="TCP port; 0 takes a free one."
)
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 64), help="How many workers to run.")
@click.option("--data-dir", default=f"{DATA_DIR}/demo", show_default=True, type=Path, help="Where everything goes.")
def demo(**options: Any) -> None:
    """Search your own Python's documentation by meaning, through the whole pipeline, and see where the time went.

    Stops at once when standard output is no terminal, else serves on until Ctrl-C.
    """
    from tailrace import demo as module

    sys.exit(module.main(**options))


cli.add_command(explain_command)
cli.add_command(requests_command)
cli.add_command(audit_command)
cli.add_command(diagnose_command)
cli.add_command(logs_command)
cli.add_command(sql_command)
cli.add_command(compare_command)
cli.add_command(ledger_command)
cli.add_command(correlate_command)
cli.add_command(dlq_command)
cli.add_command(bench_command)


def main() -> None:
    """Entry point of the command `tailrace`."""
    cli(prog_name="tailrace")
