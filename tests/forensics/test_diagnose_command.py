"""`tailrace diagnose` as it is typed: the answer as text, JSON and Markdown, objectives, and what it refuses."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from forensics_fleet import drop_lines, write_fleet

from forensics.diagnose.catalogue import CAUSES
from forensics.diagnose_command import diagnose_command


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seconds of a fleet in which one request in a hundred is lost with its worker."""
    folder = tmp_path_factory.mktemp("logs")
    write_fleet(folder, requests=3_000, per_s=1_500.0, crashed=0.02, hosts=1)
    return folder


def run(*words: object) -> Result:
    """The command, as from a shell."""
    return CliRunner().invoke(diagnose_command, [str(word) for word in words], prog_name="tailrace diagnose")


def test_the_answer_names_the_cause_its_cost_its_cure_and_an_example(logs: Path) -> None:
    """In plain text, for whoever is on call."""
    told = run(logs)
    assert told.exit_code == 0, told.output
    headline = told.output.splitlines()[0]
    assert headline.startswith("p99 is ") and headline.endswith("(G1)")
    for part in ("WHERE", "ON WHAT", "WHEN", "WHO", "WHY", CAUSES["G1"].remedy, CAUSES["G1"].check):
        assert part in told.output
    assert "tailrace explain " in told.output


def test_the_json_has_the_same_answer_and_adds_up(logs: Path) -> None:
    """Segments at the quantile, and what was spent there, come to the same time."""
    told = run(logs, "--json")
    answer = msgspec.json.decode(told.stdout)
    assert answer["findings"][0]["cause"] == answer["verdict"] == "G1"
    sums = [sum(share["at_quantile_ms"] for share in answer[part]) for part in ("segments", "spent")]
    assert sums[0] == pytest.approx(sums[1], rel=1e-9)
    assert all(f["evidence"][0]["sql"] for f in answer["findings"])
    assert 0 <= answer["unknown_share"] <= 1


def test_markdown_is_for_a_ticket(logs: Path) -> None:
    """Tables, the query of each evidence, and no markup from names."""
    told = run(logs, "--format", "markdown")
    assert told.output.startswith("## p99 is ")
    assert "```sql" in told.output and "| Where |" in told.output


@pytest.mark.parametrize(
    ("slo", "status", "word"), [("p99=100s", 0, "met"), ("p50=1us", 2, ""), ("p90=0.1ms", 1, "not met")]
)
def test_an_objective_decides_the_exit_status(logs: Path, slo: str, status: int, word: str) -> None:
    """0 when it is met, 1 when it is not, 2 when it is none."""
    told = run(logs, "--slo", slo)
    assert told.exit_code == status
    assert word in told.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--baseline", "10m"], "write A..B"),
        (["--baseline", "1m..10m"], "ends before it begins"),
        (["--since", "yesterday"], "yesterday"),
        (["--slo", "p42=1ms"], "p42"),
        (["--model", "no-such-model"], "no answered request"),
        (["--since", "2031-01-01T00:00"], "no answered request"),
    ],
)
def test_bad_input_says_what_was_expected(logs: Path, words: list[str], says: str) -> None:
    """And nothing is diagnosed."""
    told = run(logs, *words)
    assert told.exit_code in (1, 2)
    assert says in told.output


def test_logs_with_holes_are_not_diagnosed(tmp_path: Path) -> None:
    """With a third of the workers' lines gone, whoever is blamed may not be the one."""
    write_fleet(tmp_path, requests=2_000, hosts=1)
    for file in tmp_path.glob("worker-*.jsonl"):
        drop_lines(file, "wreq", every=3, renumber=True)
    told = run(tmp_path, "--json")
    answer = msgspec.json.decode(told.stdout)
    assert answer["verdict"].startswith("cannot say: ")
    assert answer["findings"] == [] and answer["refused"]


def test_without_logs_it_says_where_to_look(tmp_path: Path) -> None:
    """Not a traceback."""
    told = run(tmp_path)
    assert told.exit_code == 2
    assert "no log" in told.output
