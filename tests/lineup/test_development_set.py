"""The recordings of the development set, diagnosed anew: what is said of them must not become worse unseen.

The whole set is scored by hand (`bench/lineup/README.md`, `bench/results/`); here is the part of it that is small
enough to be kept with the code.
"""

import json
from pathlib import Path

import pytest

from bench.lineup import labels, leak, score
from bench.lineup.adapter import Verdict, parse
from bench.lineup.judge import Judgement
from bench.lineup.score import OURS, Scores
from forensics.diagnose.diagnosis import diagnose
from forensics.store import open_store

SET = Path(__file__).parents[2] / "bench" / "lineup" / "development"
STALLS = ("B6", "B1", "B2")
RIGHT_MIN = 0.85
"""Of the faults, at the first place."""


def verdict(logs: Path) -> Verdict:
    """What `tailrace diagnose` says, without a process for each log."""
    with open_store([logs]) as store:
        return parse(json.loads(json.dumps(diagnose(store, now_us=0).to_json())))


def some() -> list[str]:
    """Every fifth run, and those of the causes that are asked for by name: a diagnosis takes seconds."""
    truths = labels.read_all(SET)
    ids = sorted(truth.run for truth in truths)
    return [*ids[::5], *(truth.run for truth in truths if truth.cause in STALLS)]


@pytest.fixture(scope="module")
def scores() -> Scores:
    """A part of it, once."""
    return score.score(SET, verdict, only=some())


@pytest.mark.slow
def test_the_cause_is_named_first_in_most_of_all_recordings() -> None:
    """The same of all that are kept here; takes minutes."""
    told = score.to_json(score.score(SET, verdict))["table"][OURS]
    assert told["precision_at_1"]["share"] >= RIGHT_MIN
    assert told["false_alarms"]["count"] <= 1


def judged(scores: Scores, cause: str) -> list[Judgement]:
    """The faults of one cause that hurt."""
    return [j for j in scores.judgements[OURS] if j.expected == cause and j.right is not None]


def test_the_cause_is_named_first_in_most_recordings(scores: Scores) -> None:
    """And more often than any of the simpler rules does."""
    told = score.to_json(scores)["table"]
    shares = {name: row["precision_at_1"]["share"] for name, row in told.items()}
    assert scores.failed == {}
    assert shares[OURS] >= RIGHT_MIN
    assert shares[OURS] > max(share for name, share in shares.items() if name != OURS)


def test_hardly_anything_is_blamed_where_nothing_happened(scores: Scores) -> None:
    """Clean runs, harmless coincidences, and faults that hurt nobody."""
    told = score.to_json(scores)["table"][OURS]
    assert told["false_alarms"]["count"] <= 1
    assert told["decoys_blamed"]["count"] <= 1


def test_segments_add_up_and_leave_nothing_unexplained(scores: Scores) -> None:
    """To the nanosecond, crashes and retries included (complaint 6)."""
    told = score.to_json(scores)
    assert told["additivity_ns_max"] == 0
    assert told["table"][OURS]["unexplained_share"]["median"] <= 0.1


@pytest.mark.parametrize("cause", STALLS)
def test_stalls_outside_of_compute_are_named(scores: Scores, cause: str) -> None:
    """A held interpreter (complaint 1), collections of the worker (complaint 66) and of the gateway (complaint 67)."""
    assert any(j.right for j in judged(scores, cause))


def test_no_text_in_the_logs_tells_the_label() -> None:
    """A classifier that reads them does no better than chance."""
    truths = labels.read_all(SET)
    assert truths
    words = leak.in_logs({truth.run: SET / "logs" / truth.run for truth in truths})
    told = leak.test([words[truth.run] for truth in truths], [truth.cause for truth in truths])
    assert not told.is_there, told.telling
