"""The rules of the field, on a small log in which a collection makes every fourth request slow."""

from collections.abc import Iterator

import pytest
from lineup_samples import labels, write_log

from bench.lineup import attributes, baselines
from forensics.store import Store, empty_store, open_store
from shared.timeline import CLASS_OF


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """That log."""
    folder = tmp_path_factory.mktemp("log")
    write_log(folder, slow_from_s=15)
    with open_store([folder]) as opened:
        yield opened


def test_the_majority_is_one_cause_whatever_the_log(store: Store) -> None:
    """The most frequent one, the first by name of equals; clean runs have none."""
    truths = [labels(), labels(expected="A1", cause="A1"), labels(expected="clean"), labels()]
    told = baselines.majority(truths)(store)
    assert told.top is not None and told.top.cause == "B1"
    assert baselines.majority([])(store).top is None


def test_the_largest_z_score_finds_the_metric_that_moved(store: Store) -> None:
    """Collections of the worker, from none to a quarter of a second each."""
    told = baselines.largest_z(store)
    assert told.top is not None and told.top.cause == "B1"


def test_the_largest_difference_finds_what_the_slow_ones_share(store: Store) -> None:
    """They, and hardly any other, met a collection."""
    told = baselines.largest_difference(store)
    assert told.top is not None and told.top.cause == "B1"


def test_the_fused_ranks_find_it_as_well(store: Store) -> None:
    """Divergence and entropy both point there."""
    told = baselines.fused_ranks(store)
    assert told.top is not None and told.top.cause == "B1"


def test_an_empty_log_has_no_verdict() -> None:
    """No rule fails for want of requests; it just says nothing."""
    with empty_store() as nothing:
        assert baselines.largest_difference(nothing).top is None
        assert baselines.fused_ranks(nothing).top is None


def test_every_metric_and_attribute_has_a_cause(store: Store) -> None:
    """A rule must not lose because its table has a gap."""
    _, columns = attributes.of_requests(store)
    assert set(columns) - {"largest"} <= set(baselines.CAUSE_OF_ATTRIBUTE)
    assert set(attributes.by_second(store)) <= set(baselines.CAUSE_OF_METRIC)
    assert set(CLASS_OF) <= set(baselines.CAUSE_OF_METRIC)
