"""`tailrace bench` on the command line: what is refused, and how."""

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bench import about
from tailrace import bench_command as command
from tailrace.bench_command import bench_command


def run(*args: str) -> Result:
    return CliRunner().invoke(bench_command, args)


@pytest.fixture
def nowhere() -> str:
    """A URL where nobody listens."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{s.getsockname()[1]}"


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--replay", "x", "--rate", "5"], "leave --rate out"),
        (["--replay", "x", "--data", "y"], "leave --data out"),
        (["--speed", "2"], "belong to --replay"),
        (["--since", "10m"], "belong to --replay"),
        (["--replay", "x", "--since", "soon"], "neither a duration"),
        (["--header", "no colon"], "write 'name: value'"),
        (["--header", "x: a\r\ny: b"], "write 'name: value'"),
        (["--rate", "0"], "--rate"),
        (["--connections", "0"], "--connections"),
        (["--arrivals", "sometimes"], "--arrivals"),
    ],
)
def test_bad_usage_ends_with_status_2(args: list[str], told: str) -> None:
    """Before anybody is asked."""
    result = run("http://127.0.0.1:1", *args)
    assert result.exit_code == 2
    assert told in result.output


def test_an_unreachable_server_is_one_line_and_status_2(nowhere: str) -> None:
    """No traceback."""
    result = run(nowhere)
    assert result.exit_code == 2
    assert result.output.count("\n") == 1
    assert result.output.startswith(f"Error: {nowhere} cannot be asked: ")


def test_a_file_that_could_not_be_written_is_told_before_the_run(nowhere: str) -> None:
    """Not after it."""
    result = run(nowhere, "--json", "no/such/folder/x.json")
    assert (result.exit_code, result.output) == (2, "Error: --json: there is no folder no/such/folder\n")


def test_the_command_is_recorded_without_the_values_of_headers() -> None:
    """They may be keys."""
    argv = ["/bin/tailrace", "bench", "http://h", "-H", "authorization: Bearer s3cret", "--header=x-key: s3cret"]
    told = command._command([*argv, "-Hx: s3cret", "--data", "a b.jsonl"])
    assert "s3cret" not in told
    assert told.startswith("tailrace bench http://h -H 'authorization: ...'")
    assert told.endswith("--data 'a b.jsonl'")


def test_a_result_says_what_it_was_measured_with() -> None:
    """Enough to measure it again, and ready for JSON."""
    told = about.about("a command", packages=("numpy",))
    assert told["command"] == "a command"
    assert told["cores"] >= 1
    assert told["memory_bytes"] > 0
    assert set(told["versions"]) == {"numpy"}
    assert {"commit", "tailrace", "cpu", "kernel", "python", "unix_s"} <= set(told)
    json.dumps(told)


def test_installed_code_claims_no_commit_of_a_repository_around_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A virtual environment may lie within the user's own repository."""
    assert about._git("init", "--quiet", str(tmp_path)) == ""
    monkeypatch.setattr(about, "HERE", tmp_path)
    assert about.commit() == ""
