"""The ledger: what is added stays, what is torn is told, and nothing is lost when two add at once."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from recorded_runs import write_run
from simulated_runs import compared, run, sides

from forensics import ledger
from forensics.ledger import Conclusion, Entry, LedgerError, append, doubt, entry, read
from forensics.ledger_commands import ledger_command
from forensics.ledger_report import listing, shown

AT_US = 1_796_029_200_000_000


def call(*args: str | Path) -> Result:
    """Run a command; an exception that it lets through is a traceback to its user."""
    result = CliRunner().invoke(ledger_command, [str(a) for a in args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def plain(title: str) -> Entry:
    """An entry that measured nothing."""
    return entry(title, Conclusion.UNDECIDED, at_us=AT_US)


def test_entries_are_numbered_by_their_place_and_keep_their_ids(tmp_path: Path) -> None:
    """A merge of two branches moves numbers, not ids; either finds an entry."""
    file = tmp_path / "ledger.jsonl"
    first, second = append(file, plain("one")), append(file, plain("two"))
    assert (first.number, second.number) == (1, 2)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(reversed(lines)))
    found = read(file)
    assert found.find("1").entry.title == "two"
    assert found.find(first.id).number == 2
    assert found.find(first.id[:5]).entry.title == "one"
    for wrong in ("0", "3", "zzz", ""):
        with pytest.raises(LedgerError, match="there are 2 entries"):
            found.find(wrong)


def test_a_torn_last_line_is_told_and_costs_no_other_entry(tmp_path: Path) -> None:
    """Whoever adds next begins a line of his own; nothing is repaired."""
    file = tmp_path / "ledger.jsonl"
    append(file, plain("one"))
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:40])
    assert [u.line for u in read(file).unread] == [2]
    assert "did not finish" in read(file).unread[0].why
    added = append(file, plain("two"))
    found = read(file)
    assert added.number == 2
    assert [n.entry.title for n in found.entries] == ["one", "two"]
    assert len(found.unread) == 1
    assert file.read_bytes().startswith(whole + whole[:40] + b"\n")


def test_what_is_no_entry_is_told(tmp_path: Path) -> None:
    """Foreign lines, conflict marks of git, entries of a newer version."""
    file = tmp_path / "ledger.jsonl"
    append(file, plain("one"))
    newer = json.dumps({"v": 2, "at_us": 1, "title": "x", "conclusion": "kept"})
    file.write_bytes(b"<<<<<<< HEAD\n\n" + file.read_bytes() + newer.encode() + b"\n{}\n\xff\n")
    found = read(file)
    assert [n.entry.title for n in found.entries] == ["one"]
    assert [u.line for u in found.unread] == [1, 4, 5, 6]
    assert "newer version (2)" in found.unread[1].why


def test_many_who_add_at_once_lose_nothing(tmp_path: Path) -> None:
    """Each has a line and a number of its own."""
    file = tmp_path / "ledger.jsonl"
    with ThreadPoolExecutor(8) as pool:
        added = list(pool.map(lambda i: append(file, plain(f"try {i}")), range(40)))
    assert sorted(n.number for n in added) == list(range(1, 41))
    assert not read(file).unread


def test_an_entry_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger is read by people; what is refused leaves the file as it was."""
    for title in ("", "  ", "two\nlines", "x" * 201):
        with pytest.raises(LedgerError, match="one line"):
            plain(title)
    with pytest.raises(LedgerError, match="8,001 characters"):
        entry("x", Conclusion.KEPT, at_us=AT_US, note="n" * 8_001)
    file = tmp_path / "ledger.jsonl"
    append(file, plain("one"))
    before = file.read_bytes()
    monkeypatch.setattr(ledger, "ENTRY_BYTES_MAX", 100)
    with pytest.raises(LedgerError, match="at most 100"):
        append(file, plain("x" * 100))
    monkeypatch.undo()
    monkeypatch.setattr(ledger, "FILE_BYTES_MAX", len(before) + 10)
    with pytest.raises(LedgerError, match="begin another"):
        append(file, plain("two"))
    assert file.read_bytes() == before


def test_a_write_that_fails_leaves_no_half_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk takes a part of the line: that part is taken back."""
    file = tmp_path / "ledger.jsonl"
    append(file, plain("one"))
    before = file.read_bytes()
    real = ledger.os.write
    monkeypatch.setattr(ledger.os, "write", lambda fd, block: real(fd, block[:10]))
    with pytest.raises(LedgerError, match="disk is full"):
        append(file, plain("two"))
    assert file.read_bytes() == before


def test_a_measurement_keeps_its_numbers(tmp_path: Path) -> None:
    """Each run's quantile, the interval, the segments, what else differed; of many runs, too, within the bound."""
    file = tmp_path / "ledger.jsonl"
    facts = {"worker torch": "2.13.0", "worker lease_s": "3"}
    a, b = sides(5, b={"forward": 0.8, "facts": facts})
    new = entry("Faster", Conclusion.KEPT, at_us=AT_US, comparison=compared(a, b), commit="abc", dirty=True)
    kept = append(file, new).entry
    assert kept.comparison is not None
    p99 = next(m for m in kept.comparison["measures"] if m["name"] == "p99")
    assert p99["shown"]
    assert len(p99["b_runs"]) == 5
    assert kept.runs["b"] == {"worker torch": "2.13.0"}
    many = [run(i, requests=100) for i in range(110)]
    append(file, entry("Many", Conclusion.KEPT, at_us=AT_US, comparison=compared(many, many)))
    text = "\n".join(listing(read(file), markdown=False))
    assert "p99 -1" in text
    assert "abc-dirty" in text


def test_a_conclusion_that_the_measurement_does_not_support_is_told() -> None:
    """Most optimisations that were kept by hope are found so."""
    same, faster, slower = (compared(*sides(5, b=b)) for b in ({}, {"forward": 0.8}, {"forward": 1.2}))
    assert "neither" in doubt(Conclusion.KEPT, same)
    assert "worse" in doubt(Conclusion.KEPT, slower)
    assert "better" in doubt(Conclusion.REVERTED, faster)
    for conclusion, c in (
        (Conclusion.KEPT, faster),
        (Conclusion.REVERTED, slower),
        (Conclusion.REVERTED, same),
        (Conclusion.UNDECIDED, same),
    ):
        assert doubt(conclusion, c) == ""


def test_markdown_cannot_be_broken_by_a_title(tmp_path: Path) -> None:
    """A bar ends no cell, and nothing of it is markup; nothing moves the cursor of a terminal."""
    file = tmp_path / "ledger.jsonl"
    append(file, plain("a|b <img> *x* \x1b[2J"))
    *_, row = listing(read(file), markdown=True)
    assert "a\\|b \\<img\\> \\*x\\*" in row
    for markdown in (True, False):
        assert "\x1b" not in "".join([*listing(read(file), markdown=markdown), *shown(read(file).entries[0], markdown=markdown)])  # fmt: skip  # noqa: E501


def test_add_measures_and_shows_and_list_lists(tmp_path: Path) -> None:
    """From the runs to the table, with the commit of the repository that the ledger lies in."""
    for side, forward_ms in (("old", 30), ("new", 20)):
        write_run(tmp_path / side, requests=200, forward_ms=forward_ms, seed=len(side) + forward_ms)
    repository = tmp_path / "repository"
    repository.mkdir()
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-C", str(repository)]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    file = repository / "tailrace-ledger.jsonl"
    measured = ["--a", tmp_path / "old", "--b", tmp_path / "new"]
    result = call("add", "--title", "Smaller", *measured, "--conclusion", "kept", "--note", "why\nnot", "--file", file)
    assert result.exit_code == 0, result.output
    assert "entry 1 of" in result.output
    assert "Warning: there is one recording a side" in result.output
    assert call("add", "--title", "Idea", "--conclusion", "undecided", "--file", file).exit_code == 0
    subprocess.run([*git, "add", "."], check=True)
    listed = call("list", "--file", file)
    assert [line.split()[0] for line in listed.output.splitlines()] == ["#", "1", "2"]
    assert commit[:10] in listed.output
    told = json.loads(call("show", "1", "--file", file, "--json").stdout)
    assert (told["number"], told["commit"], told["dirty"], told["note"]) == (1, commit, False, "why\nnot")
    assert told["machine"]["cores"] >= 1
    assert "### 1. Smaller" in call("show", "1", "--file", file, "--format", "markdown").output
    assert call("list", "--file", file, "--format", "markdown").output.startswith("| # | date |")


def test_damage_is_told_beside_what_is_whole(tmp_path: Path) -> None:
    """On standard error, with status 0: the rest is good."""
    file = tmp_path / "ledger.jsonl"
    append(file, plain("one"))
    with file.open("ab") as end:
        end.write(b'{"v":1,')
    result = call("list", "--file", file, "--json")
    assert result.exit_code == 0
    assert [json.loads(line)["title"] for line in result.stdout.splitlines()] == ["one"]
    assert "line 2 of" in result.stderr
    assert "torn" in result.stderr


def test_bad_input_has_status_2(tmp_path: Path) -> None:
    """No traceback, and a word on what is expected."""
    file = tmp_path / "ledger.jsonl"
    add = ["add", "--title", "x", "--conclusion", "kept", "--file"]
    for args, words in (
        (["list", "--file", file], "`tailrace ledger add` makes one"),
        ([*add, file, "--a", "x"], "--b is missing"),
        ([*add, file, "--a", tmp_path / "no", "--b", tmp_path / "no"], "there is no"),
        ([*add, tmp_path / "no" / "ledger.jsonl"], "cannot be written"),
        (["add", "--title", "", "--conclusion", "kept", "--file", file], "one line"),
        (["add", "--title", "x", "--conclusion", "good", "--file", file], "good"),
    ):
        result = call(*args)
        assert result.exit_code == 2, result.output
        assert words in result.output
    append(file, plain("one"))
    assert call("show", "7", "--file", file).exit_code == 2
