"""`tailrace compare` on the command line, from logs with known differences."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from recorded_runs import Recipe, write_run

from forensics.compare_commands import compare_command
from forensics.run_folders import runs_in
from forensics.store import LogError


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs a side, in turns; the forward pass of `new` takes 28 ms instead of 20."""
    folder = tmp_path_factory.mktemp("runs")
    for i in range(4):
        write_run(folder / "old" / f"run-{i}", seed=i, at_s=40 * i, requests=80)
        write_run(
            folder / "new" / f"run-{i}",
            Recipe(seed=i + 50, at_s=40 * i + 20, requests=80, forward_ms=28, config={"lease_s": 5}),
        )
    return folder


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One set of logs in which versions 1 and 2 are served in turns."""
    folder = tmp_path_factory.mktemp("canary")
    write_run(folder, requests=400, versions=("1", "2"), errors=4)
    return folder


def run(*args: str | Path) -> Result:
    """Run the command; an exception that it lets through is a traceback to its user."""
    result = CliRunner().invoke(compare_command, [str(a) for a in args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_two_folders_of_runs(runs: Path) -> None:
    """The difference, its interval, the segment, what else differs, and the verdict with its exit status."""
    result = run(runs / "old", runs / "new", "--fail-if", "p50>+5%", "--fail-if", "p99>10s")
    assert result.exit_code == 1, result.output
    text = result.output
    assert "4 runs of" in text
    forward = next(line for line in text.splitlines() if line.strip().startswith("forward"))
    assert forward.endswith("*")
    assert "gateway lease_s: 3 -> 5" in text
    assert "FAIL  p50>+5%: p50 +" in text
    assert "pass  p99>10s: p99 of B" in text
    assert "not interleaved" not in text
    assert "\x1b" not in text


def test_patterns_and_repeated_options_name_runs_too(runs: Path) -> None:
    """A pattern that the shell did not expand, and runs one by one."""
    result = run("--a", runs / "old" / "run-*", "--b", runs / "new" / "run-0", "--b", runs / "new" / "run-1", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert [len(told[side]["runs"]) for side in "ab"] == [4, 2]
    assert not any(m["shown"] for m in told["measures"])


def test_a_gate_that_cannot_fail_is_an_error(runs: Path) -> None:
    """Two runs a side never show a breach: CI must not take that for a pass."""
    two = ["--a", runs / "old" / "run-[01]", "--b", runs / "new" / "run-[01]"]
    result = run(*two, "--fail-if", "p50>+5%")
    assert result.exit_code == 2
    assert "p50>+5% can never be shown" in result.output


def test_a_single_run_a_side_is_sliced_with_a_warning(runs: Path) -> None:
    """Better than nothing, and said to be less than repeated runs."""
    result = run(runs / "old" / "run-0", runs / "new" / "run-0", "--fail-if", "p50>+5%", "--slices", "5")
    assert result.exit_code == 1, result.output
    assert "5 slices of" in result.output
    assert "the interval covers the noise within a recording" in result.output


def test_two_versions_within_one_set_of_logs(canary: Path) -> None:
    """Slices of the same times, so both met the same machine; the one asked for first is A."""
    result = run("--by", "version", canary, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert [told[side]["name"] for side in "ab"] == ["minilm version 1", "minilm version 2"]
    assert told["sliced"]
    for a, b in zip(told["a"]["runs"], told["b"]["runs"], strict=True):
        assert abs(a["first_us"] - b["first_us"]) < 100_000
    assert not any("interleaved" in warning for warning in told["warnings"])
    # The first of four errors came before version 2 was asked for.
    assert sum(r["errors"] for side in "ab" for r in told[side]["runs"]) == 3
    swapped = json.loads(run("--by", "version", "--a", "2", "--b", "1", canary, "--json").stdout)
    assert swapped["a"]["name"] == "minilm version 2"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["{runs}/old"], "name two sides"),
        (["{runs}/old", "{runs}/new", "{runs}/old"], "name two sides"),
        (["{runs}/old", "--b", "{runs}/new"], "name two sides"),
        (["--a", "{runs}/old"], "--b is missing"),
        (["{runs}/old", "{runs}/nowhere"], "there is no"),
        (["{runs}/old", "{runs}/new-*"], "there is no"),
        (["{runs}/old", "{runs}/old"], "cannot be compared with itself"),
        (["{runs}/old", "{runs}/new/../old/run-1"], "cannot be compared with itself"),
        (["{runs}/old", "{runs}/empty"], "no log"),
        (["{runs}/old", "{runs}/new", "--slices", "4"], "for a single run a side"),
        (["{runs}/old", "{runs}/new", "--fail-if", "p99>5%"], "write p99>+5%"),
        (["{runs}/old", "{runs}/new", "--quantile", "1"], "--quantile"),
        (["{runs}/old", "{runs}/new", "--model", "nobody"], "no request that was answered with success"),
        (["{runs}/old/run-0", "{runs}/new/run-0", "--model", "nobody"], "has no request of nobody"),
        (["{runs}/old/run-0", "{runs}/new/run-0", "--skip-s", "3600"], "no request that was answered with success"),
        (["--by", "version", "{runs}/old/run-0"], "no model has two versions; there are minilm/1"),
        (["--by", "version", "--a", "1", "--b", "3", "{runs}/old/run-0"], "no model has the versions 1 and 3"),
        (["--by", "version", "--a", "1", "{runs}/old/run-0"], "one version with --a and one with --b"),
    ],
)
def test_bad_input_has_status_2_and_says_what_is_expected(runs: Path, args: list[str], words: str) -> None:
    """No traceback, whatever is wrong."""
    (runs / "empty").mkdir(exist_ok=True)
    result = run(*(arg.format(runs=runs) for arg in args))
    assert result.exit_code == 2, result.output
    assert words in result.output.replace("\n", " ")


def test_a_run_of_several_machines_is_one_run(tmp_path: Path) -> None:
    """Folders of folders of logs: the logs of a run may lie apart."""
    for run_name in ("run-1", "run-2"):
        for machine in ("gateway", "worker"):
            (tmp_path / run_name / machine).mkdir(parents=True)
            (tmp_path / run_name / machine / f"{machine}-x.jsonl").touch()
    (tmp_path / "notes").mkdir()
    found = runs_in([str(tmp_path)])
    assert [f.name for f in found] == [str(tmp_path / "run-1"), str(tmp_path / "run-2")]
    assert [len(f.paths) for f in found] == [2, 2]
    with pytest.raises(LogError, match="no log"):
        runs_in([str(tmp_path / "notes")])


def test_the_warm_up_can_be_left_out(tmp_path: Path) -> None:
    """The first seconds of a run are of cold caches."""
    write_run(tmp_path / "a", requests=200, seed=1)
    write_run(tmp_path / "b", requests=200, seed=2)
    whole, late = (
        json.loads(run(tmp_path / "a", tmp_path / "b", "--json", *skip).stdout) for skip in ((), ("--skip-s", "2"))
    )
    count = [sum(r["answered"] for r in told["a"]["runs"]) for told in (whole, late)]
    assert count == [200, 100]


def test_damaged_logs_are_told_with_the_result(tmp_path: Path) -> None:
    """A run whose lines are missing may be the faster one for that reason."""
    for name, seed in (("a", 1), ("b", 2)):
        write_run(tmp_path / name, requests=100, seed=seed)
    file = tmp_path / "b" / "gateway-gw-1.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(line for i, line in enumerate(lines) if i % 7))
    result = run(tmp_path / "a", tmp_path / "b")
    assert result.exit_code == 0, result.output
    assert "lines of gateway-gw-1 are missing" in result.output


def test_help_tells_the_exit_status_and_has_an_example() -> None:
    """CI reads the status, people the example."""
    result = run("--help")
    assert "Exits with 1 when a --fail-if condition" in result.output
    assert "Example:\n    tailrace compare" in result.output
