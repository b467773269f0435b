"""Every detector is in the catalogue, its evidence can be asked for, and it keeps quiet where its cause is not."""

import importlib
import pkgutil
from pathlib import Path

import pytest
from forensics_fleet import small_store

from forensics import cause_docs
from forensics.diagnose import detectors
from forensics.diagnose.attribution import attribute
from forensics.diagnose.case import Case
from forensics.diagnose.catalogue import CAUSES, FAMILIES
from forensics.diagnose.detectors import DETECTORS
from forensics.diagnose.ranking import confidence
from forensics.diagnose.window import take
from forensics.segments_sql import SEGMENTS
from forensics.store import empty_store

MODULES = [importlib.import_module(f"{detectors.__name__}.{m.name}") for m in pkgutil.iter_modules(detectors.__path__)]
QUERIES = {m.__name__: m.SQL for m in MODULES if hasattr(m, "SQL")}


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A fleet in which workers die with one request in a hundred."""
    with small_store(tmp_path_factory.mktemp("fleet"), requests=3_000, crashed=0.02, per_s=1_500.0) as store:
        window = take(store)
    return Case(window, attribute(window))


def test_each_cause_has_one_detector_and_each_detector_a_file() -> None:
    """Thirty of them; a file that nobody calls would find nothing."""
    assert len(DETECTORS) == len(CAUSES) == len(MODULES)
    assert {d.__module__ for d in DETECTORS} == {m.__name__ for m in MODULES}


def test_causes_are_told_whole() -> None:
    """Each has a family, segments that exist, a cure, and what would refute it."""
    for cause in CAUSES.values():
        assert cause.id[0] in FAMILIES
        assert set(cause.segments) <= set(SEGMENTS)
        assert cause.remedy.endswith(".") and cause.check.endswith(".")


def test_the_document_of_causes_is_fresh() -> None:
    """It is made from the catalogue and the detectors."""
    assert cause_docs.FILE.read_text() == cause_docs.render(), "run `python -m forensics.cause_docs`"


@pytest.mark.parametrize("name", QUERIES)
def test_the_query_of_each_evidence_can_be_asked(name: str) -> None:
    """As it is printed, in `tailrace sql`."""
    with empty_store() as store:
        store.rows(QUERIES[name])


def test_all_detectors_look_at_any_logs(crashes: Case) -> None:
    """None of them fails for want of samples, of workers or of something to find; scores are shares."""
    for detect in DETECTORS:
        finding = detect(crashes)
        assert finding is None or 0 <= finding.score <= 1


def test_crashed_workers_are_the_answer_where_they_are(crashes: Case) -> None:
    """What crashes cost outweighs everything else in these logs."""
    found = [f for f in (detect(crashes) for detect in DETECTORS) if f is not None]
    best = max(found, key=lambda f: f.gain.tail_ms)
    assert best.cause.id == "G1"
    assert best.delta_ms > 1_000


def test_confidence_grows_with_each_of_its_figures() -> None:
    """Better evidence, more explained, further ahead, a change in time: none of these makes a finding less sure."""
    middle = (0.5, 0.5, 0.5, False)
    for i, better in enumerate((0.9, 0.9, 0.9, True)):
        figures = [better if i == k else value for k, value in enumerate(middle)]
        assert confidence(*figures) > confidence(*middle)  # type: ignore[arg-type]


def test_too_few_requests_are_refused(tmp_path: Path) -> None:
    """Nobody should be told about the p99 of thirty requests."""
    from forensics.diagnose.diagnosis import NothingToDiagnose, diagnose

    with small_store(tmp_path, requests=50) as store, pytest.raises(NothingToDiagnose, match="too few"):
        diagnose(store, now_us=0)
