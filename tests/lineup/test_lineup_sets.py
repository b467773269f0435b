"""Which runs a set has: all of it follows from a secret, and a hash vouches for it."""

from itertools import pairwise
from pathlib import Path

from bench.lineup import runs, scenario
from bench.lineup.runs import Seconds


def test_the_development_set_has_mild_and_strong_on_two_backgrounds() -> None:
    """Thirty causes by four, 24 clean runs, 12 decoys."""
    wanted = runs.development()
    faults = [run for run in wanted if run.scenario.is_fault and not run.scenario.lookalikes]
    clean = [run for run in wanted if run.scenario.cause == scenario.CLEAN]
    assert (len(faults), len(clean), len(wanted)) == (120, 24, 156)
    assert len({run.id for run in wanted}) == 156
    assert {run.share for run in wanted} == {0.0, 1.0}


def test_ids_tell_nothing_of_their_runs() -> None:
    """They are pseudo-random, and so is the order of the runs, which goes by them."""
    wanted = runs.development()
    assert [run.id for run in wanted] == sorted(run.id for run in wanted)
    neighbours = sum(a.path == b.path for a, b in pairwise(wanted))
    assert neighbours < 20


def test_a_set_is_the_same_every_time_and_another_with_another_secret() -> None:
    """The manifest's hash can be published, and the set made again."""
    one, again, other = (runs.held_out(secret, ["B1"], count=3) for secret in (b"x", b"x", b"y"))
    assert runs.manifest(one)["sha256"] == runs.manifest(again)["sha256"] != runs.manifest(other)["sha256"]
    assert all(0 < run.share < 1 for run in one)
    assert len({run.background.rate_per_s for run in one}) == 3


def test_a_held_out_set_may_be_on_a_background_that_nobody_has_seen() -> None:
    """Only where the scenario does not insist on its own."""
    elsewhere = runs.held_out(b"x", ["B1", "A4"], count=1, elsewhere=True)
    assert {run.scenario.cause: run.background.name for run in elsewhere}["B1"] == "signals"
    assert {run.scenario.cause: run.background.name for run in elsewhere}["A4"] != "signals"


def test_the_manifest_changes_with_the_scenario_and_the_lengths(tmp_path: Path) -> None:
    """What was published cannot be exchanged later."""
    source = scenario.find("clean_steady").read_text()
    (tmp_path / "own.py").write_text(source)
    before = runs.manifest(runs.development([str(tmp_path / "own.py")]))["sha256"]
    shorter = runs.manifest(runs.development([str(tmp_path / "own.py")], seconds=Seconds(1, 1, 1)))["sha256"]
    (tmp_path / "own.py").write_text(source + "\n")
    after = runs.manifest(runs.development([str(tmp_path / "own.py")]))["sha256"]
    assert len({before, shorter, after}) == 3


def test_shards_are_a_partition() -> None:
    """Four machines record a set without a run twice or not at all."""
    wanted = runs.development()
    parts = [runs.shard_of(wanted, number, 4) for number in (1, 2, 3, 4)]
    assert sorted(run.id for part in parts for run in part) == [run.id for run in wanted]


def test_a_fault_has_the_traffic_of_a_calm_run() -> None:
    """On the common backgrounds it is the steady run; else a twin can be recorded."""
    wanted = runs.development(["B1", "clean_steady"])
    pairs = {run.pair for run in wanted if run.path.stem == "clean_steady"}
    assert {run.pair for run in wanted if run.scenario.cause == "B1"} == pairs
    assert runs.with_twins(wanted) == wanted
    twins = [run for run in runs.with_twins(runs.development(["A4"])) if run.twin]
    assert len(twins) == 4
    assert {twin.path.stem for twin in twins} == {"clean_steady"}
