"""Scenarios are files: those that come with the lineup are complete, and anybody's can be taken by its path."""

from pathlib import Path

import pytest

from bench.lineup import scenario
from bench.lineup.scenario import CLEAN, DECOY, Impact, Scenario, ScenarioError, Span
from shared.timeline import CLASS_OF

CORE = ["A1", "A2", "A3", "A4", "A5", "A6", "A7", "B1", "B2", "B3", "B4", "B5", "B6", "C1", "C2", "C3", "C4", "C6"]
CORE += ["D1", "D2", "D3", "D4", "E1", "E3", "F1", "F2", "F4", "G1", "G5", "H3"]
OWN = """
from contextlib import asynccontextmanager
from bench.lineup.scenario import Scenario

def act(inside, *, times):
    return [inside.role] * times

@asynccontextmanager
async def inject(stack, rng, strength, truth):
    yield

SCENARIO = Scenario(cause="A8", mechanism="somebody's own", inject=inject, segments=("forward",))
"""
every_file = pytest.mark.parametrize("path", scenario.all_files(), ids=lambda path: path.stem)


def test_each_core_cause_has_one_scenario() -> None:
    """Thirty causes are scored; the other scenarios are clean runs and decoys."""
    loaded = [scenario.load(path) for path in scenario.all_files()]
    faults = [s for s in loaded if s.is_fault and not s.lookalikes]
    assert sorted(s.cause for s in faults) == sorted(CORE)
    assert {s.cause for s in loaded if not s.is_fault} == {CLEAN, DECOY}


@every_file
def test_a_scenario_is_complete(path: Path) -> None:
    """It says where to look, in names that the time model has, on two backgrounds of different names."""
    found = scenario.load(path)
    assert set(found.segments) <= set(CLASS_OF)
    assert bool(found.segments) == found.is_fault
    assert len({background.name for background in found.backgrounds}) == len(found.backgrounds) == 2
    assert path.stem.startswith(("clean_", "decoy_")) or path.stem.startswith(f"{found.cause.lower()}_")
    assert (path.parent / found.model.partition(":")[0]).exists() or found.model.startswith("bench.lineup.serving:")


@every_file
def test_a_scenario_loads_no_torch_into_the_recorder(path: Path) -> None:
    """The recorder shares the cores with what it measures; models are loaded by the workers alone."""
    assert "import torch" not in path.read_text().split("\ndef ", 1)[0]


def test_a_span_goes_from_mild_to_strong_in_equal_factors() -> None:
    """Half the way is the geometric mean."""
    span = Span(10, 40)
    assert (span.at(0), span.at(0.5), span.at(1)) == (10, pytest.approx(20), pytest.approx(40))


def test_a_cause_a_name_and_a_path_find_the_same_file(tmp_path: Path) -> None:
    """B1 is the one scenario of that cause, and somebody's own file needs no registration."""
    assert scenario.find("B1") == scenario.find("b1_collections") == scenario.INJECTORS / "b1_collections.py"
    own = tmp_path / "own.py"
    own.write_text(OWN)
    loaded = scenario.load(scenario.find(str(own)))
    assert (loaded.cause, loaded.family, loaded.impact) == ("A8", "A", Impact.P99)


@pytest.mark.parametrize("name", ["Z9", "clean", "/nowhere/x.py"])
def test_what_is_no_scenario_is_told(name: str) -> None:
    """An unknown cause, a name that means several files, a file that is not there."""
    with pytest.raises(ScenarioError):
        scenario.find(name)


def test_a_file_without_a_scenario_is_told(tmp_path: Path) -> None:
    """The message says what the file must define."""
    (tmp_path / "empty.py").write_text("x = 1\n")
    with pytest.raises(ScenarioError, match="must define SCENARIO"):
        scenario.load(tmp_path / "empty.py")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(ScenarioError, match="ZeroDivisionError"):
        scenario.load(tmp_path / "broken.py")


def test_seeds_depend_on_secret_and_parts() -> None:
    """Without the secret nobody knows what a held-out run will be."""
    seed = scenario.seed_of(b"secret", "a", 1)
    assert seed == scenario.seed_of(b"secret", "a", 1)
    assert len({seed, scenario.seed_of(b"other", "a", 1), scenario.seed_of(b"secret", "a", 2)}) == 3


def test_the_strength_is_one_share_of_the_way_for_all_quantities() -> None:
    """Mild is mild in everything."""

    def inject(*_: object) -> None: ...

    s = Scenario(cause="A1", mechanism="", inject=inject, strength={"a": Span(1, 4), "b": Span(9, 1)})  # type: ignore[arg-type]
    assert s.strength_at(0) == {"a": 1, "b": 9}
    assert s.strength_at(0.5) == {"a": pytest.approx(2), "b": pytest.approx(3)}
