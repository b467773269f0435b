"""`tailrace explain` and `tailrace requests` on the command line."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from forensics_logbook import MS, T0_WALL_US, Logbook, req, write_gateway, write_worker

from forensics.commands import Patience, explain_command, requests_command


class Story:
    """A clock that only sleeping moves, and what happens meanwhile."""

    def __init__(self, *, starts_at_ms: float = 60_000.0) -> None:
        self.slept_ms = 0.0
        self.starts_at_ms = starts_at_ms
        self.on_sleep: Callable[[], None] = lambda: None

    def patience(self) -> Patience:
        """For the commands to wait with."""
        return Patience(now_ns=self._now_ns, now_us=self._now_us, sleep=self._sleep)

    def _now_ns(self) -> int:
        return round(self.slept_ms * MS)

    def _now_us(self) -> int:
        return T0_WALL_US + round((self.starts_at_ms + self.slept_ms) * 1_000)

    def _sleep(self, seconds: float) -> None:
        self.slept_ms += seconds * 1_000
        self.on_sleep()


@pytest.fixture
def story() -> Story:
    """Time stands still until a command sleeps."""
    return Story()


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Two requests of one worker, one of which failed."""
    book = Logbook(tmp_path / "logs")
    ok = req("req-0001-aaaa", label="order-7")
    failed = req("req-0001-bbbb", label="order-8", begun_ms=200, status=500, error_code="model_error", error="[red]no")
    write_gateway(book, ok, failed)
    write_worker(book, ok, failed)
    return tmp_path / "logs"


def _run(command: object, *args: str | Path, story: Story) -> Result:
    return CliRunner().invoke(command, [str(a) for a in args], obj=story.patience())  # type: ignore[arg-type]


def test_explain_prints_a_plain_waterfall(log_dir: Path, story: Story) -> None:
    """In a pipe it is text for people and grep alike."""
    result = _run(explain_command, "order-7", "--log-dir", log_dir, story=story)
    assert result.exit_code == 0, result.output
    assert "request req-0001-aaaa  label order-7" in result.output
    assert "100.000123 = e2e, exactly" in result.output
    assert "\x1b" not in result.output
    assert story.slept_ms == 0


def test_explain_prints_one_json_object_a_line(log_dir: Path, story: Story) -> None:
    """Every request that bears the trace id has its own line."""
    result = _run(explain_command, "f" * 32, "--json", "--log-dir", log_dir, story=story)
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert [t["id"] for t in told] == ["req-0001-aaaa", "req-0001-bbbb"]
    for t in told:
        assert sum(s["ns"] for s in t["segments"]) == t["e2e_ns"] == sum(t["classes"].values())


def test_explain_takes_the_log_folder_from_the_environment(log_dir: Path, story: Story) -> None:
    """Whoever set it for the services need not repeat it."""
    env = {"TAILRACE_LOG_DIR": str(log_dir)}
    result = CliRunner().invoke(explain_command, ["order-7"], env=env, obj=story.patience())
    assert result.exit_code == 0, result.output


def test_an_unknown_id_fails_after_a_second_and_says_what_was_searched(log_dir: Path, story: Story) -> None:
    """The message names the folder, how much is in it, and what could have been meant."""
    result = _run(explain_command, "order-9", "--log-dir", log_dir, story=story)
    assert result.exit_code == 1
    assert 1_000 <= story.slept_ms <= 1_200
    assert "'order-9'" in result.output
    assert "2 requests in 2 files under" in result.output
    assert result.output.index("req-0001-bbbb  order-8") < result.output.index("req-0001-aaaa  order-7")


def test_a_request_that_is_about_to_be_logged_is_waited_for(log_dir: Path, story: Story) -> None:
    """Writers flush every 50 ms: an id from a response that just arrived must not be called unknown."""
    story.on_sleep = lambda: write_gateway(Logbook(log_dir), req("req-9999"))
    result = _run(explain_command, "req-9999", "--log-dir", log_dir, story=story)
    assert result.exit_code == 0, result.output
    assert story.slept_ms == pytest.approx(100)


def test_the_workers_lines_of_a_fresh_request_are_waited_for(tmp_path: Path) -> None:
    """The gateway may flush before the worker: half a story is told only when the rest does not come."""
    story = Story(starts_at_ms=150)
    book = Logbook(tmp_path)
    r = req("req-0001")
    write_gateway(book, r)
    story.on_sleep = lambda: write_worker(Logbook(tmp_path), r)
    result = _run(explain_command, "req-0001", "--json", "--log-dir", tmp_path, story=story)
    assert json.loads(result.stdout)["complete"]


def test_an_ambiguous_piece_of_an_id_names_the_candidates(log_dir: Path, story: Story) -> None:
    """Nothing is guessed."""
    result = _run(explain_command, "req-0001", "--log-dir", log_dir, story=story)
    assert result.exit_code == 1
    assert "2 requests fit 'req-0001'" in result.output
    assert "req-0001-bbbb" in result.output


def test_a_missing_log_folder_is_said(tmp_path: Path, story: Story) -> None:
    """The most frequent mistake has its own message."""
    for command, args in ((explain_command, ["x"]), (requests_command, [])):
        result = _run(command, *args, "--log-dir", tmp_path / "nowhere", story=story)
        assert result.exit_code == 1
        assert "there is no log folder" in result.output


def test_an_empty_log_folder_is_said(tmp_path: Path, story: Story) -> None:
    """It may be the wrong one."""
    result = _run(explain_command, "x", "--log-dir", tmp_path, story=story)
    assert result.exit_code == 1
    assert "No request has been logged there" in result.output


def test_requests_lists_what_fits(log_dir: Path, story: Story) -> None:
    """Conditions and order come from the options."""
    result = _run(requests_command, "--status", "5xx", "--log-dir", log_dir, story=story)
    assert result.exit_code == 0, result.output
    header, line = result.output.splitlines()
    assert header.startswith("time UTC id (end)")
    assert line.split()[:4] == ["09:00:00", "001-bbbb", "500", "100.0"]
    result = _run(requests_command, "--slowest", "1", "--since", "10m", "--json", "--log-dir", log_dir, story=story)
    (told,) = [json.loads(text) for text in result.stdout.splitlines()]
    assert told["e2e_ns"] == 100_000_123


def test_requests_refuses_mistaken_options(log_dir: Path, story: Story) -> None:
    """With the reason, and the status of a wrong command line."""
    for args in (("--status", "bad"), ("--since", "soon"), ("--slowest", "0")):
        result = _run(requests_command, *args, "--log-dir", log_dir, story=story)
        assert result.exit_code == 2, result.output


def test_requests_says_when_nothing_fits(log_dir: Path, story: Story) -> None:
    """An empty answer is told apart from an empty log."""
    result = _run(requests_command, "--model", "nobody", "--log-dir", log_dir, story=story)
    assert result.exit_code == 0
    assert "no request fits, of 2" in result.output


@pytest.mark.parametrize("command", [explain_command, requests_command])
def test_help_has_an_example(command: object, story: Story) -> None:
    """An example says more than the list of options."""
    result = _run(command, "--help", story=story)
    assert "Example:\n    tailrace " in result.output
    assert "TAILRACE_LOG_DIR" in result.output
