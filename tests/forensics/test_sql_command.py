"""`tailrace sql` and `tailrace logs` on the command line: what they print, and what they refuse."""

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from forensics_fleet import drop_lines, write_fleet
from forensics_logbook import Logbook, batch, req, write_gateway, write_worker

from forensics import sql_docs
from forensics.log_commands import logs_command, sql_command
from forensics.sql import SqlError, ask
from forensics.store import open_store
from forensics.views import VIEWS


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The logs of a small fleet."""
    folder = tmp_path_factory.mktemp("fleet")
    write_fleet(folder)
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two requests with their worker; one has a text that would clear the screen."""
    folder = tmp_path_factory.mktemp("two")
    book = Logbook(folder)
    one, other = req("req-a", label="\x1b[2J"), req("req-b", begun_ms=200, status=500, error='no, "not" this')
    write_gateway(book, one, other)
    write_worker(book, one, other)
    return folder


def run(command: object, *args: str | Path) -> Result:
    """Run a command; an exception that it lets through is a traceback to its user."""
    result = CliRunner().invoke(command, [str(a) for a in args])  # type: ignore[arg-type]
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_a_table_for_people(two: Path) -> None:
    """Numbers stand right, texts left, what would move the cursor is shown, and the rows are counted."""
    result = run(sql_command, two, "SELECT id, label, e2e_ns FROM requests ORDER BY id")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        "id     label       e2e_ns",
        "req-a  \\x1b[2J  100000123",
        "req-b           100000123",
        "(2 rows)",
    ]


def test_csv_and_json_for_programs(two: Path) -> None:
    """Whole and exact; JSON has numbers as numbers, lists as lists, facts of events as objects."""
    query = "SELECT id, status, error, queue_ns, started_at FROM requests ORDER BY id"
    rows = list(csv.DictReader(io.StringIO(run(sql_command, two, query, "--format", "csv").stdout)))
    assert rows[1]["error"] == 'no, "not" this'
    told = [json.loads(line) for line in run(sql_command, two, query, "--format", "json").stdout.splitlines()]
    assert [(row["id"], row["status"]) for row in told] == [("req-a", 200), ("req-b", 500)]
    assert told[0]["queue_ns"] == int(rows[0]["queue_ns"])
    assert told[0]["started_at"] == "2026-11-30T09:00:00"
    query = (
        "SELECT attrs, [1, NULL] AS some, 1.5 AS d, 'nan'::DOUBLE AS n, 2::HUGEINT AS h FROM events WHERE kind = 'gc'"
    )
    (line,) = run(sql_command, two, query, "--format", "json").stdout.splitlines()
    assert json.loads(line) == {"attrs": {"generation": 2}, "some": [1, None], "d": 1.5, "n": None, "h": 2}


def test_an_empty_answer_has_its_columns(two: Path) -> None:
    """It is told apart from an empty log."""
    assert run(sql_command, two, "SELECT id FROM requests WHERE false").output == "id\n(0 rows)\n"
    assert run(sql_command, two, "SELECT id FROM requests WHERE false", "--format", "csv").output == "id\n"


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM raw.lines",
        "INSERT INTO raw.lives SELECT * FROM raw.lives",
        "CREATE TABLE x AS SELECT 1",
        "DROP VIEW requests",
        "UPDATE raw.lives SET lost = 0",
        "COPY requests TO '{folder}/out.csv'",
        "ATTACH '{folder}/x.db'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "PRAGMA threads = 1",
        "SELECT 1; DROP VIEW requests",
        "EXPLAIN ANALYZE DELETE FROM raw.lives",
        "EXPORT DATABASE '{folder}'",
    ],
)
def test_nothing_but_a_query_is_let_through(two: Path, tmp_path: Path, query: str) -> None:
    """Logs are evidence."""
    result = run(sql_command, two, query.format(folder=tmp_path))
    assert result.exit_code == 2
    assert "one SELECT is expected" in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("query", ["SELECT * FROM read_text('/etc/passwd')", "SELECT * FROM '{folder}/x.csv'"])
def test_a_query_reaches_no_other_file(two: Path, tmp_path: Path, query: str) -> None:
    """Neither the machine's nor the logs' own, whose lines are in the tables already."""
    (tmp_path / "x.csv").write_text("a\n1\n")
    result = run(sql_command, two, query.format(folder=tmp_path))
    assert result.exit_code == 2
    assert "file system operations are disabled" in result.output


def test_archives_stay_readable_behind_the_lock(two: Path, tmp_path: Path) -> None:
    """They are not copied, but read where they lie."""
    assert run(logs_command, "compact", two, "-o", tmp_path / "a").exit_code == 0
    assert run(sql_command, tmp_path / "a", "SELECT count(*) AS n FROM requests").output.split() == [
        "n",
        "2",
        "(1",
        "row)",
    ]
    with open_store([tmp_path / "a"]) as store:
        assert list(ask(store, "SELECT count(*) FROM attempts").rows) == [(2,)]
        with pytest.raises(SqlError, match="COPY"):
            ask(store, f"COPY requests TO '{tmp_path}/a/req-20261130T09.parquet'")


def test_a_mistake_in_the_query_is_explained(two: Path) -> None:
    """With the place, and what was probably meant."""
    result = run(sql_command, two, "SELECT e2e FROM requests")
    assert result.exit_code == 2
    assert "e2e_ns" in result.output
    assert "LINE 1" in result.output
    assert "syntax error" in run(sql_command, two, "SELEC 1").output
    assert "0 statements" in run(sql_command, two, " ").output
    assert run(sql_command, two, "SELECT error::INTEGER FROM requests").exit_code == 2


def test_a_missing_log_is_named(tmp_path: Path) -> None:
    """The most frequent mistake has its own message, in each command."""
    for command, args in (
        (sql_command, [tmp_path / "nowhere", "SELECT 1"]),
        (logs_command, ["check", tmp_path / "nowhere"]),
        (logs_command, ["compact", tmp_path / "nowhere", "-o", tmp_path / "out"]),
    ):
        result = run(command, *args)
        assert result.exit_code == 2
        assert "there is no" in result.output
        assert "Traceback" not in result.output


def test_the_folder_comes_from_the_environment(two: Path) -> None:
    """Whoever set it for the services need not repeat it."""
    result = CliRunner().invoke(sql_command, ["SELECT count(*) AS n FROM requests"], env={"TAILRACE_LOG_DIR": str(two)})
    assert result.output == "n\n2\n(1 row)\n"


def test_check_says_when_all_is_well_and_when_not(fleet: Path, tmp_path: Path) -> None:
    """Its exit status does, too."""
    result = run(logs_command, "check", fleet)
    assert result.exit_code == 0, result.output
    assert "of 6 processes in 6 files, 300 requests" in result.output
    assert "Nothing is missing" in result.output
    for file in fleet.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    drop_lines(tmp_path / "worker-w-0.jsonl", "wreq", every=10)
    result = run(logs_command, "check", tmp_path)
    assert result.exit_code == 1
    assert "\nREFUSE  " in result.output
    assert "\n  Cannot say " in result.output
    told = [json.loads(line) for line in run(logs_command, "check", tmp_path, "--json").stdout.splitlines()]
    assert {t["defect"] for t in told} == {"lost_lines", "request_without_attempt", "batch_without_attempt"}


def test_compact_says_what_it_did(fleet: Path, tmp_path: Path) -> None:
    """And a second time that there was nothing to do."""
    logs = tmp_path / "logs"
    logs.mkdir()
    for file in fleet.iterdir():
        (logs / file.name).write_bytes(file.read_bytes())
    result = run(logs_command, "compact", logs, "-o", tmp_path / "a", "--remove")
    assert result.exit_code == 0, result.output
    assert "lines added, 6 archives written in" in result.output
    assert "6 logs removed" in result.output
    assert run(logs_command, "compact", logs, "-o", tmp_path / "a").output.startswith("0 lines added, 0 archives")


def test_the_document_of_the_views_is_fresh() -> None:
    """Whoever changes a view writes docs/sql.md again."""
    assert sql_docs.FILE.read_text() == sql_docs.render(), "run `python -m forensics.sql_docs`"


def test_every_example_of_the_document_has_an_answer(fleet: Path) -> None:
    """A reader copies them."""
    with open_store([fleet]) as store:
        for title, query in sql_docs.EXAMPLES.items():
            rows = list(ask(store, query).rows)
            assert rows or "garbage" in title, title


def test_every_column_of_every_view_has_a_meaning_and_one_name(two: Path) -> None:
    """`SELECT *` of any view has no name twice."""
    with open_store([two]) as store:
        for view in VIEWS:
            names = [column.name for column in view.columns]
            assert len(names) == len(set(names))
            assert all(column.meaning for column in view.columns)
            assert [row[0] for row in store.rows(f"DESCRIBE {view.name}")] == names
        assert {row[0] for row in store.rows("SHOW TABLES")} == {view.name for view in VIEWS}


def test_batches_tell_their_padding(tmp_path: Path) -> None:
    """A model without tokens has none."""
    book = Logbook(tmp_path)
    book.write("worker", "w-1", batch("b-1", start_ms=0, end_ms=5, members=["a"]), at_ms=6)
    padded = batch("b-2", start_ms=6, end_ms=9, members=["b"], tokens_useful=60, tokens_padded=80)
    book.write("worker", "w-1", padded, at_ms=10)
    with open_store([tmp_path]) as store:
        rows = store.rows("SELECT batch_id, padding_ratio, forward_ns FROM batches ORDER BY 1")
        assert rows == [("b-1", None, 5_000_000), ("b-2", 0.25, 3_000_000)]
