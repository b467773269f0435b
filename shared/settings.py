"""Settings: declared once, read from flags, environment and file, checked together, all mistakes reported at once.

Precedence: command-line flag, environment variable `TAILRACE_<NAME>`, `--config FILE` (TOML), default. A variable or a
key that no setting has is a mistake too, so that a typing error cannot pass as "no effect".
"""

import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from shared import bulk, redis_urls
from shared.errors import SettingsError

ENV_PREFIX = "TAILRACE_"


def setting(
    default: Any, help: str, *, min: float | None = None, max: float | None = None, secret: bool = False
) -> Any:
    """A dataclass field with its help text and bounds. A `secret` is left out of the logs."""
    return field(default=default, metadata={"help": help, "min": min, "max": max, "secret": secret})


def secrets_of(settings: Any) -> frozenset[str]:
    """The names of the settings that no log may show."""
    return frozenset(f.name for f in fields(settings) if f.metadata["secret"])


@dataclass(frozen=True, kw_only=True, slots=True)
class CommonSettings:
    """What every process has."""

    redis: str = setting(
        "redis://127.0.0.1:6379/0",
        "URL of the Redis or Valkey server: redis://, rediss:// or unix://. "
        "Of several, with commas between, the primary is used.",
    )
    log_dir: str = setting(".tailrace/logs", "Directory of the event logs (JSON lines).")
    log_level: str = setting("info", "Least level of the logs for people: debug, info, warning or error.")
    lease_s: float = setting(
        5.0, "A worker silent for this long is taken for dead and its requests are handed on.", min=0.5
    )
    bulk_dir: str = setting(
        bulk.AUTO,
        "Folder in memory where gateways and workers of one host hand each other tensors too large for Redis; "
        "auto: /dev/shm/tailrace-UID; empty: everything goes through Redis.",
    )
    drain_s: float = setting(30.0, "How long a process that was told to stop may finish what it holds.", min=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class GatewaySettings(CommonSettings):
    """The gateway's settings."""

    host: str = setting("127.0.0.1", "Address to listen on; 0.0.0.0 for all.")
    port: int = setting(8000, "TCP port to listen on; 0 takes a free one.", min=0, max=65535)
    gateways: int = setting(
        1, "How many gateways listen on the same port of this machine, and share its connections.", min=1, max=64
    )
    request_timeout_s: float = setting(
        60.0, "Deadline of a request that names none, and the longest one may name.", min=0.001
    )
    body_bytes_max: int = setting(64 << 20, "Largest request body, decompressed.", min=1)
    inflight_max: int = setting(20_000, "Most requests a gateway holds at once; more are refused with 429.", min=1)
    inflight_bytes_max: int = setting(
        1 << 30,
        "Most bytes of bodies a gateway reads, or holds for the workers, at once; more are refused with 429.",
        min=1,
    )
    queue_max: int = setting(
        10_000, "Most requests queued or running for one model version; more are refused with 429.", min=1
    )
    queue_bytes_max: int = setting(
        1 << 30, "Most bytes of payloads queued or running for one model version; more are refused with 429.", min=1
    )
    tenant_max: int = setting(
        10_000,
        "Most requests of one tenant queued or running for one model version, unless its own limit says otherwise.",
        min=1,
    )
    tenants: str = setting("", "TOML file of the tenants and their API keys; empty asks nobody for a key.")
    job_timeout_s: float = setting(
        3600.0, "Deadline of an asynchronous job that names none, and the longest one may name.", min=0.001
    )
    job_ttl_s: float = setting(86_400.0, "How long the result of a job is kept.", min=1, max=30 * 86_400)
    job_wait_s: float = setting(60.0, "Longest wait for a job's end in one GET.", min=0)
    job_durability: str = setting(
        "none", "What must have a job before it is accepted, if it names nothing: none, replica, fsync or both."
    )
    durable_wait_s: float = setting(2.0, "How long replica and disk have to confirm a job.", min=0.01, max=60)
    idempotency_ttl_s: float = setting(
        86_400.0, "How long the answer to a request with an Idempotency-Key is kept.", min=1, max=30 * 86_400
    )
    webhook_hosts: str = setting(
        "", "Hosts that webhooks may be sent to, HOST or HOST:PORT with commas between, * for any text; empty: none."
    )
    webhook_tries: int = setting(15, "How often a webhook is tried before it is given up.", min=1, max=1000)
    webhook_secret: str = setting("", "Key of the signature of webhooks; needed with webhook_hosts.", secret=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSettings(CommonSettings):
    """The worker's settings."""

    model_repository: str = setting("", "Directory NAME/VERSION/ of models; empty serves the demo models.")
    models: str = setting("", "Names of the models to serve, with commas between; empty serves all.")
    learned_dir: str = setting(
        ".tailrace/learned", "Directory where it is kept how long passes take, for the next start; empty keeps nothing."
    )
    device: str = setting("cpu", "Device to run on: cpu, cuda, cuda:N, or auto (cuda if there is one).")
    threads: int = setting(
        1, "torch threads of one forward pass. More than the idle cores makes everything slower.", min=1
    )
    pass_max_s: float = setting(
        45.0, "A forward pass that takes longer is taken for hung: its worker ends, its requests run alone.", min=0.1
    )


S = TypeVar("S", bound=CommonSettings)


def load(
    kind: type[S],
    *,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    config: Path | None = None,
) -> S:
    """Build the settings of one process. Raises SettingsError with every mistake found.

    `flags` holds only what was given on the command line. Variables of the other process kinds are accepted.
    """
    mistakes: list[str] = []
    own = {f.name: f for f in fields(kind)}
    known = {f.name for k in (GatewaySettings, WorkerSettings) for f in fields(k)}
    values: dict[str, tuple[str, Any]] = {}
    for name, value in _read_file(config, mistakes).items():
        if name in known:
            values[name] = (f"{name} in {config}", value)
        else:
            mistakes.append(f"{config}: there is no setting '{name}'{_nearest(name, known)}")
    for variable, text in environ.items():
        if not variable.startswith(ENV_PREFIX):
            continue
        name = variable.removeprefix(ENV_PREFIX).lower()
        if name in known:
            values[name] = (variable, text)
        else:
            mistakes.append(f"{variable}: there is no such setting{_nearest(name, known, upper=True)}")
    for name, value in flags.items():
        if value is not None:
            values[name] = (f"--{name.replace('_', '-')}", value)
    checked = {
        name: _check(values[name][0], values[name][1], own[name], mistakes) for name in own.keys() & values.keys()
    }
    if mistakes:
        raise SettingsError("\n".join(mistakes))
    return kind(**checked)


def _read_file(config: Path | None, mistakes: list[str]) -> dict[str, Any]:
    if config is None:
        return {}
    try:
        return tomllib.loads(config.read_text())
    except OSError as e:
        mistakes.append(f"--config: {config} cannot be read: {e.strerror}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        mistakes.append(f"--config: {config} is not TOML: {e}")
    return {}


def _nearest(name: str, known: set[str], *, upper: bool = False) -> str:
    close = difflib.get_close_matches(name, known, 1)
    if not close:
        return ""
    return f"; did you mean {ENV_PREFIX + close[0].upper() if upper else close[0]!r}?"


_WANTED = {int: "an integer", float: "a number", str: "a text"}


def _check(where: str, value: Any, declared: Any, mistakes: list[str]) -> Any:
    wanted = {"int": int, "float": float, "str": str}[
        declared.type if isinstance(declared.type, str) else declared.type.__name__
    ]
    try:
        # A file has types: a list is not a host, and true is not 1. What is not finite would pass every bound.
        if isinstance(value, bool | list | dict) or (wanted is int and isinstance(value, float)):
            raise ValueError
        converted = wanted(value)
        if wanted is float and not math.isfinite(converted):
            raise ValueError
    except (TypeError, ValueError):
        mistakes.append(f"{where}={value!r}: set {_WANTED[wanted]}")
        return value
    low, high = declared.metadata["min"], declared.metadata["max"]
    if low is not None and converted < low:
        mistakes.append(f"{where}={value}: set at least {low}")
    if high is not None and converted > high:
        mistakes.append(f"{where}={value}: set at most {high}")
    if declared.name == "log_level" and converted not in ("debug", "info", "warning", "error"):
        mistakes.append(f"{where}={value!r}: choose debug, info, warning or error")
    if declared.name == "job_durability" and converted not in ("none", "replica", "fsync", "both"):
        mistakes.append(f"{where}={value!r}: choose none, replica, fsync or both")
    if declared.name == "redis":
        wrong = ((url, redis_urls.mistake(url)) for url in redis_urls.split(converted) or [""])
        mistakes += [f"{where}={redis_urls.without_secrets(url)!r}: {mistake}" for url, mistake in wrong if mistake]
    return converted
