"""A recorded set, scored from its folder: verdicts, baselines, tables."""

import json
from pathlib import Path

import pytest
from lineup_samples import labels, verdict, write_log

from bench.lineup import labels as truths
from bench.lineup import score
from bench.lineup.adapter import NoVerdict, Verdict
from bench.lineup.labels import Labels

RISE = {"p50": {}, "p99": {"before_ms": 20.0, "during_ms": 40.0}, "figure": "p99"}


def add(folder: Path, truth: Labels) -> None:
    """One run with its small log."""
    write_log(folder / "logs" / truth.run, gc=truth.is_fault)
    truths.write(truth, folder / "labels" / f"{truth.run}.json")


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A fault, the calm run of the same traffic, and one that was recorded on a busy machine."""
    add(tmp_path, labels(run="r1"))
    add(tmp_path, labels(run="r2", scenario="clean_steady", cause="clean", expected="clean", impact=RISE))
    add(tmp_path, labels(run="r3", flags=["others used 30% of the machine before the fault"]))
    return tmp_path


def test_labels_come_back_as_they_were_written(tmp_path: Path) -> None:
    """Windows and episodes included."""
    truth = labels(episodes=[(1, 2), (3, 4)])
    truths.write(truth, tmp_path / "labels" / "r1.json")
    assert truths.read_all(tmp_path) == [truth]


def test_a_set_is_scored_with_the_baselines_beside(recorded: Path) -> None:
    """Whoever used the machine beside us decides what counts, before anybody has looked at the verdicts."""
    scores = score.score(recorded, lambda logs: verdict("B1", delta_p99_ms=100.0) if logs.name == "r1" else Verdict())
    told = score.to_json(scores)
    ours = told["table"]["tailrace diagnose"]
    assert told["runs"] == 2
    assert [line.split()[0] for line in told["left_out"]] == ["r3"]
    assert (ours["precision_at_1"]["share"], ours["false_alarms"]["share"]) == (1.0, 0.0)
    assert told["table"]["B2 largest difference"]["precision_at_1"]["share"] == 1.0
    assert ours["delta_p99_error"] == {"median": 0.25, "count": 1}


def test_segments_sum_to_the_whole_and_explain_it(recorded: Path) -> None:
    """Asked of the views, whatever the diagnosis says."""
    told = score.to_json(score.score(recorded, None))
    assert told["additivity_ns_max"] == 0
    assert "tailrace diagnose" not in told["table"]


def test_a_diagnosis_that_fails_counts_as_one_that_says_nothing(recorded: Path) -> None:
    """And its words are kept."""

    def fail(_: Path) -> Verdict:
        raise NoVerdict("it fell over")

    scores = score.score(recorded, fail, with_flagged=True)
    told = score.to_json(scores)
    assert told["failed"] == {"r1": "it fell over", "r2": "it fell over", "r3": "it fell over"}
    assert told["table"]["tailrace diagnose"]["precision_at_1"]["share"] == 0.0


def test_the_tables_are_written_for_people_and_machines(recorded: Path, tmp_path: Path) -> None:
    """Every figure of every way, and what was taken for what."""
    told = score.to_json(score.score(recorded, lambda _: verdict("D2")))
    score.write(told, tmp_path / "out" / "table")
    text = (tmp_path / "out" / "table.md").read_text()
    assert "| precision@1 | 0.00 (0.00 to 0.79) of 1 |" in text
    assert "| B1 | 0 | 1 | 1 D2 |" in text
    assert json.loads((tmp_path / "out" / "table.json").read_text()) == told
