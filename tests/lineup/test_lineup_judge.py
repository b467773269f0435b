"""A verdict against the truth, and judgements in figures."""

from dataclasses import replace

import pytest
from lineup_samples import BEGAN_US, labels, verdict

from bench.lineup.adapter import Finding, Verdict
from bench.lineup.judge import Judgement, Share, brier, by_cause, figures, judge, part_of, reliability


def test_the_right_cause_first_is_right() -> None:
    """In every respect that it tells."""
    told = verdict("B1", "D2", segment="post", started_unix_us=BEGAN_US + 1_500_000, culprits=frozenset({"w-1"}))
    found = judge(labels(), told)
    assert (found.right, found.right_of_three, found.right_family, found.right_segment) == (True,) * 4
    assert (found.right_culprit, found.change_error_s, found.alarmed) == (True, 1.5, None)


def test_a_neighbour_of_the_family_is_wrong_but_near() -> None:
    """Hierarchical: the family and the place have credit of their own."""
    found = judge(labels(), verdict("B2", "A1", "B1", segment="stream_wait", culprits=frozenset({"gw-1"})))
    assert (found.right, found.right_of_three, found.right_family) == (False, True, True)
    assert (found.right_segment, found.right_culprit) == (True, False)


def test_an_abstention_is_wrong_and_may_still_know_the_place() -> None:
    """`unknown (in post)` counts as no answer."""
    found = judge(labels(), Verdict((Finding("unknown", 0.8, segment="post"),)))
    assert (found.named, found.right, found.right_segment) == ("", False, True)
    assert judge(labels(), Verdict()).right is False


@pytest.mark.parametrize(("confidence", "alarmed"), [(0.9, True), (0.3, False)])
def test_only_a_confident_finding_is_a_false_alarm(confidence: float, alarmed: bool) -> None:
    """A suspicion that says that it is one alarms nobody."""
    found = judge(labels(cause="clean", expected="clean"), verdict("D2", confidence=confidence))
    assert (found.part, found.alarmed, found.right) == ("clean", alarmed, None)


def test_a_fault_without_impact_is_a_clean_run() -> None:
    """Nothing that a user sees has changed, so nothing is to be found."""
    rejected = labels(expected="clean")
    assert part_of(rejected) == "clean"
    assert judge(rejected, verdict("B1")).alarmed is True


def test_a_decoy_is_blamed_when_it_is_named_instead_of_the_fault() -> None:
    """And not when the fault is named, or when nothing is."""
    truth = labels(cause="F1", family="F", expected="F1", lookalikes=["B1", "B2"])
    assert judge(truth, verdict("B1")).fell_for_it is True
    assert judge(truth, verdict("B1", confidence=0.2)).fell_for_it is False
    assert judge(truth, verdict("F1")).fell_for_it is False
    harmless = labels(cause="decoy", expected="decoy", lookalikes=["C3"])
    assert judge(harmless, verdict("D2")).fell_for_it is True
    assert judge(harmless, Verdict()).fell_for_it is False


def test_the_predicted_gain_is_compared_with_a_calm_run() -> None:
    """Only where the cause is right and such a run is there."""
    told = verdict("B1", delta_p99_ms=80.0)
    assert judge(labels(), told, measured_delta_ms=100.0).delta_error == pytest.approx(0.2)
    assert judge(labels(), told).delta_error is None
    assert judge(labels(), verdict("B2", delta_p99_ms=80.0), measured_delta_ms=100.0).delta_error is None


@pytest.mark.parametrize(
    ("count", "of", "low", "high"), [(0, 48, 0.0, 0.0741), (102, 120, 0.7751, 0.9030), (10, 10, 0.7225, 1.0)]
)
def test_wilsons_interval(count: int, of: int, low: float, high: float) -> None:
    """Values of R's binom.confint(method = "wilson")."""
    assert Share(count, of).interval == (pytest.approx(low, abs=5e-4), pytest.approx(high, abs=5e-4))


def test_nothing_has_no_interval() -> None:
    """Of no runs there is no share."""
    assert (Share(0, 0).value, Share(0, 0).interval) == (None, None)


def of(right: bool, confidence: float, cause: str = "B1") -> Judgement:
    """A judgement of a fault."""
    return Judgement("r", cause, cause, "fault", cause if right else "D2", confidence, right=right)


def test_confidence_is_held_against_what_was_right() -> None:
    """Brier's score, and how often what was said with a confidence was right; a false alarm was wrong."""
    alarm = replace(of(False, 0.8), part="clean", right=None, alarmed=True)
    judgements = [of(True, 0.9), of(False, 0.9), alarm]
    assert brier(judgements) == pytest.approx((0.01 + 0.81 + 0.64) / 3, abs=1e-4)
    assert [(b["count"], b["right"]) for b in reliability(judgements)] == [(3, 1)]
    assert brier([]) is None


def test_the_figures_of_a_set() -> None:
    """Coverage and precision of the answered beside precision of all."""
    judgements = [of(True, 0.9), of(True, 0.4), of(False, 0.8), of(False, 0.2)]
    told = figures(judgements)
    assert told["precision_at_1"]["share"] == 0.5
    assert (told["coverage"]["share"], told["precision_of_answered"]["share"]) == (0.5, 0.5)
    assert told["false_alarms"]["share"] is None
    assert told["change_error_s"] == {"median": None, "p90": None, "count": 0}


def test_causes_are_listed_with_what_was_said_instead() -> None:
    """So one sees what is taken for what."""
    table = by_cause([of(True, 0.9), of(False, 0.9), of(True, 0.5, "A1")])
    assert table == {"A1": {"runs": 1, "right": 1, "instead": {}}, "B1": {"runs": 2, "right": 1, "instead": {"D2": 1}}}
