"""Settings: from flags, environment and file, checked together, and no mistake passes in silence."""

from pathlib import Path
from typing import Any

import pytest

from shared.errors import SettingsError
from shared.settings import CommonSettings, GatewaySettings, WorkerSettings, load

DEFAULTS = GatewaySettings()


def gateway(
    flags: dict[str, Any] | None = None, environ: dict[str, str] | None = None, config: Path | None = None
) -> GatewaySettings:
    return load(GatewaySettings, flags=flags or {}, environ=environ or {}, config=config)


def mistakes(**kwargs: Any) -> list[str]:
    """The lines of the error."""
    with pytest.raises(SettingsError) as raised:
        gateway(**kwargs)
    return str(raised.value).splitlines()


def toml(folder: Path, text: str) -> Path:
    path = folder / "tailrace.toml"
    path.write_text(text)
    return path


# -- where a value comes from ------------------------------------------------------------------------------------------


def test_without_anything_there_are_defaults() -> None:
    """A process starts with no settings at all."""
    assert gateway() == DEFAULTS
    assert load(WorkerSettings, flags={}, environ={}) == WorkerSettings()


def test_flag_goes_before_environment_before_file_before_default(tmp_path: Path) -> None:
    """The nearer to the person who starts the process, the stronger."""
    config = toml(tmp_path, 'port = 1\nqueue_max = 1\nhost = "file"\n')
    got = gateway(flags={"port": "3"}, environ={"TAILRACE_PORT": "2", "TAILRACE_QUEUE_MAX": "2"}, config=config)
    assert (got.port, got.queue_max, got.host, got.drain_s) == (3, 2, "file", DEFAULTS.drain_s)


def test_a_flag_that_was_not_given_does_not_count() -> None:
    """The command line hands over None for those."""
    assert gateway(flags={"port": None}, environ={"TAILRACE_PORT": "2"}).port == 2


def test_text_becomes_the_declared_type(tmp_path: Path) -> None:
    """Flags and variables are text, a file has types; an integer is a fine number of seconds."""
    got = gateway(flags={"port": "80", "drain_s": "1.5"}, config=toml(tmp_path, "lease_s = 7\n"))
    assert (got.port, got.drain_s, got.lease_s) == (80, 1.5, 7.0)
    assert isinstance(got.lease_s, float)


def test_other_programs_variables_are_none_of_our_business() -> None:
    """Only names that begin as ours are checked."""
    assert gateway(environ={"PORT": "x", "TAILRACER_PORT": "x", "REDIS_TEST_SERVERS": "x"}) == DEFAULTS


def test_one_environment_and_one_file_serve_all_kinds_of_processes(tmp_path: Path) -> None:
    """A gateway takes no offence at a worker's settings."""
    config = toml(tmp_path, 'device = "cuda"\nthreads = 4\n')
    assert gateway(environ={"TAILRACE_MODELS": "bert"}, config=config) == DEFAULTS
    assert load(WorkerSettings, flags={}, environ={"TAILRACE_PORT": "80"}, config=config).threads == 4


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    """One round of corrections is enough, whatever was wrong and wherever it came from."""
    told = mistakes(
        flags={"port": "99999", "redis": "localhost"},
        environ={"TAILRACE_QUEUE_MAX": "many", "TAILRACE_PROT": "1"},
        config=toml(tmp_path, 'drain_s = -1\nlease_secs = 3\nlog_level = "loud"\n'),
    )
    assert len(told) == 7
    for where in (
        "--port=99999",
        "--redis=",
        "TAILRACE_QUEUE_MAX=",
        "TAILRACE_PROT:",
        "drain_s in",
        "lease_secs",
        "loud",
    ):
        assert sum(where in line for line in told) == 1, where


def test_a_name_that_does_not_exist_is_a_mistake_with_a_suggestion(tmp_path: Path) -> None:
    """A typing error cannot pass as "no effect"."""
    assert mistakes(environ={"TAILRACE_PROT": "1"}) == [
        "TAILRACE_PROT: there is no such setting; did you mean 'TAILRACE_PORT'?"
    ]
    (told,) = mistakes(config=toml(tmp_path, "lease = 3\n"))
    assert told.endswith("there is no setting 'lease'; did you mean 'lease_s'?")
    (told,) = mistakes(environ={"TAILRACE_ZZZZZZ": "1"})
    assert "did you mean" not in told


@pytest.mark.parametrize(
    ("name", "text", "advice"),
    [
        ("port", "-1", "set at least 0"),
        ("port", "65536", "set at most 65535"),
        ("port", "80.5", "set an integer"),
        ("port", "", "set an integer"),
        ("lease_s", "0.4", "set at least 0.5"),
        ("lease_s", "soon", "set a number"),
        ("lease_s", "nan", "set a number"),
        ("drain_s", "inf", "set a number"),
        ("request_timeout_s", "0", "set at least 0.001"),
        ("log_level", "INFO", "choose debug, info, warning or error"),
        ("redis", "http://localhost", "begin it with redis://, rediss:// or unix://"),
        ("redis", "redis://localhost:99999", "its port is no number"),
    ],
)
def test_a_wrong_value_is_told_with_what_to_do(name: str, text: str, advice: str) -> None:
    """The line names the place, the value and the way out."""
    variable = f"TAILRACE_{name.upper()}"
    (told,) = mistakes(environ={variable: text})
    assert told.startswith(f"{variable}=")
    assert text in told
    assert advice in told
    (told,) = mistakes(flags={name: text})
    assert told.startswith(f"--{name.replace('_', '-')}=")


def test_redis_may_be_several_servers() -> None:
    """Each of them is checked, and a mistake in one does not tell the password of any."""
    several = "redis://:s3cret@a:6379/0,rediss://b:6379"
    assert gateway(flags={"redis": several}).redis == several
    told = mistakes(flags={"redis": "redis://:s3cret@a:x,redis://b,http://:s3cret@c"})
    assert [line.partition(": ")[0] for line in told] == ["--redis='redis://a:x'", "--redis='http://c'"]
    assert "s3cret" not in str(told)


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("port = true", "set an integer"),
        ("port = 80.0", "set an integer"),
        ("lease_s = [1]", "set a number"),
        ("lease_s = nan", "set a number"),
        ("host = true", "set a text"),
        ('host = ["a", "b"]', "set a text"),
        ("host = {a = 1}", "set a text"),
    ],
)
def test_a_value_of_the_wrong_type_in_a_file_is_a_mistake(tmp_path: Path, line: str, advice: str) -> None:
    """TOML has types, and a list is not a host."""
    (told,) = mistakes(config=toml(tmp_path, line + "\n"))
    assert told.startswith(f"{line.split()[0]} in {tmp_path}")
    assert advice in told


def test_a_file_that_cannot_be_read_is_a_mistake_among_others(tmp_path: Path) -> None:
    """Missing, not TOML, not even text: told with the file's name, and the rest is checked all the same."""
    broken = toml(tmp_path, "port = = 1")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    for path, why in ((tmp_path / "nowhere", "cannot be read"), (broken, "is not TOML"), (binary, "is not TOML")):
        told = mistakes(flags={"port": "x"}, config=path)
        assert len(told) == 2
        assert f"--config: {path} {why}" in told[0]


def test_every_setting_says_what_it_is() -> None:
    """The help of the command line and the table in the documentation are made from these."""
    for kind in (CommonSettings, GatewaySettings, WorkerSettings):
        for declared in kind.__dataclass_fields__.values():
            assert declared.metadata["help"].endswith(".")
            assert type(declared.default).__name__ in (declared.type, getattr(declared.type, "__name__", ""))
