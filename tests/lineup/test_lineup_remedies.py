"""Cures are tried live by `python -m bench.lineup remedies`. Here: what counts as working, and that there are some."""

from dataclasses import replace

import pytest

from bench.lineup import scenario
from bench.lineup.remedies import Tried
from forensics.diagnose.catalogue import CAUSES

TRIED = Tried("A3", "a3_linger", "texts", "Lower it.", "Lowered.", "p50", baseline_ms=20, fault_ms=60, cured_ms=21)


@pytest.mark.parametrize(("cured_ms", "works"), [(15.0, True), (24.0, True), (24.1, False), (60.0, False)])
def test_a_cure_works_when_the_figure_is_back_within_a_fifth(cured_ms: float, works: bool) -> None:
    """Of what it was before the fault; better is well, too."""
    assert replace(TRIED, cured_ms=cured_ms).works is works


def test_without_harm_there_is_nothing_to_cure() -> None:
    """A fault that nobody notices shows nothing of its cure."""
    assert TRIED.hurt
    assert not replace(TRIED, fault_ms=24.0).hurt


def test_ten_causes_and_more_have_a_cure_that_can_be_applied_here() -> None:
    """Each says what it does, next to what the diagnosis prints."""
    cures = [s for s in map(scenario.load, scenario.all_files()) if s.cure is not None]
    assert len({s.cause for s in cures}) >= 10
    assert all(s.cure is not None and s.cure.__doc__ and CAUSES[s.cause].remedy for s in cures)
