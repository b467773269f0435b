"""What is left out of a log on purpose does not look lost."""

from pathlib import Path

import pytest

from bench.lineup.ablate import ablate
from bench.make_logs import Fleet, Plan
from forensics.compact import compact
from forensics.quality import Defect, check
from forensics.store import open_store


@pytest.fixture
def archived(tmp_path: Path) -> Path:
    """A small fleet's log as archives."""
    Fleet(Plan(requests=300, per_s=100.0), tmp_path / "log").run()
    compact([tmp_path / "log"], tmp_path / "archive")
    return tmp_path / "archive"


def lost(folder: Path) -> set[Defect]:
    """What looks lost there."""
    with open_store([folder]) as store:
        return {f.defect for f in check(store, now_us=0)} & {Defect.LOST_LINES, Defect.DROPPED_LINES}


def test_types_of_record_can_be_hidden(archived: Path, tmp_path: Path) -> None:
    """The others are all there, and nothing is missing by the numbers."""
    ablate(archived, tmp_path / "less", without=["evt", "res"])
    with open_store([archived]) as whole, open_store([tmp_path / "less"]) as less:
        assert whole.value("SELECT count(*) FROM raw.res") > 0
        assert less.value("SELECT count(*) FROM raw.evt") == less.value("SELECT count(*) FROM raw.res") == 0
        same = "SELECT * FROM requests ORDER BY id"
        assert whole.rows(same) == less.rows(same)
    assert not lost(tmp_path / "less")


def test_the_logs_of_some_processes_can_be_hidden(archived: Path, tmp_path: Path) -> None:
    """With the gateways' logs alone."""
    ablate(archived, tmp_path / "less", procs=["gateway"])
    with open_store([tmp_path / "less"]) as less:
        assert {row[0] for row in less.rows("SELECT DISTINCT proc FROM raw.lives")} == {"gateway"}
        assert less.value("SELECT count(*) FROM raw.req") > 0
    assert not lost(tmp_path / "less")
