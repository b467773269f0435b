"""What time was spent on adds up to all of it, and what is known to have happened is found again."""

from pathlib import Path

import numpy as np
import pytest
from forensics_fleet import small_store, write_fleet
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.diagnose.attribution import _IDLE, Attribution, Spent, _cut, _Span, _Totals, attribute
from forensics.diagnose.service import Part, fit
from forensics.diagnose.window import Window, ids, take
from forensics.explain import Explainer
from forensics.load import Logs
from forensics.store import open_store

ROUNDING_NS = len(Spent)
"""A label may be short by a nanosecond at each end for every other label."""
LABELS = (Spent.ABSENT, Spent.QUEUED, Spent.GC, Spent.LOAD, Spent.RECONNECT, Spent.WORKER_LOOP)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> tuple[Window, Attribution]:
    """Three hosts whose clocks drift, with crashes, late and withdrawn requests, and full batches."""
    plan = {"hosts": 3, "workers": 6, "drift_ppm": 40.0, "requests": 4_000, "per_s": 3_000.0}
    with small_store(tmp_path_factory.mktemp("fleet"), **plan) as store:
        window = take(store)
    return window, attribute(window)


def test_the_labels_of_each_request_sum_to_its_end_to_end_time(fleet: tuple[Window, Attribution]) -> None:
    """0 ns off, with retries and crashes, across clocks with offset and drift."""
    window, attribution = fleet
    total = sum(attribution.spent.values(), np.zeros(len(window.requests), dtype=np.int64))
    assert np.array_equal(total, window.requests.e2e)


def test_no_label_takes_more_than_there_is(fleet: tuple[Window, Attribution]) -> None:
    """But for rounding, no label is negative where no segment is."""
    window, attribution = fleet
    sound = np.all([ns >= 0 for ns in window.requests.segments.values()], axis=0)
    for label, ns in attribution.spent.items():
        assert ns[sound].min() >= -ROUNDING_NS, label


def test_the_parts_of_each_pass_sum_to_what_it_took(fleet: tuple[Window, Attribution]) -> None:
    """Normal and beyond, in whole nanoseconds."""
    window, attribution = fleet
    total = sum(attribution.passes.parts.values(), np.zeros(len(window.batches), dtype=np.int64))
    assert np.array_equal(total, window.batches.took)
    assert all(ns.min() >= 0 for ns in attribution.passes.parts.values())


def test_lost_attempts_are_told_as_retries(fleet: tuple[Window, Attribution]) -> None:
    """What a crash cost is neither queueing nor computing."""
    window, attribution = fleet
    again = window.requests.numbers["attempt"] > 1
    assert again.any()
    assert np.array_equal(attribution.spent[Spent.RETRY], window.requests.segments["lost_attempt"])
    assert attribution.spent[Spent.RETRY][again].min() > 1_000_000_000


def test_the_law_behind_the_passes_is_found_again(fleet: tuple[Window, Attribution]) -> None:
    """The fleet's passes take 3 ms and 2.2 us for each token, padding included, with 8 % of noise."""
    _, attribution = fleet
    law = attribution.passes.laws["minilm"]
    small, large = (law.predict(np.array([u]), np.array([u * u]), np.array([1.0]))[0] for u in (100.0, 3_000.0))
    assert small == pytest.approx(3.2e6 + 0.1e6, rel=0.12)
    assert large - small == pytest.approx(2_900 * 2_200, rel=0.15)


def test_padding_is_told_apart_from_batch_mates(fleet: tuple[Window, Attribution]) -> None:
    """The fleet's passes pad; a request that is alone in its pass has neither."""
    window, attribution = fleet
    alone = (window.requests.batch >= 0) & (
        window.batches.numbers["requests"][np.maximum(window.requests.batch, 0)] == 1
    )
    for label in (Spent.PADDING, Spent.BATCH_MATES):
        assert attribution.spent[label][alone].max(initial=0) <= 1_000
        assert attribution.spent[label][~alone].sum() > 0


@given(
    st.lists(st.tuples(st.integers(0, 900), st.integers(1, 300), st.sampled_from(LABELS)), max_size=12),
    st.lists(st.tuples(st.integers(-50, 1200), st.integers(0, 400)), min_size=1, max_size=8),
    st.integers(0, 60),
)
@settings(max_examples=60)
def test_the_labels_of_any_wait_partition_it(
    spans: list[tuple[int, int, Spent]], waits: list[tuple[int, int]], gc_ns: int
) -> None:
    """However events and passes overlap: what is labelled and what is idle make up the wait, to the nanosecond."""
    made, took = [], []
    for start, length, label in spans:
        batch = -1
        if label is Spent.QUEUED:
            batch = len(took)
            took.append(length)
        made.append(_Span(start, start + length, label, batch))
    lengths = np.array(took, dtype=np.int64)
    parts = {part: np.zeros(len(took), dtype=np.int64) for part in Part}
    parts[Part.GC] = np.minimum(lengths, gc_ns)
    parts[Part.NORMAL] = lengths - parts[Part.GC]
    totals = _Totals(made, parts, lengths)
    x = np.array([start for start, _ in waits], dtype=np.int64)
    y = x + np.array([length for _, length in waits], dtype=np.int64)
    found = totals.between(x, y)
    labelled = sum((ns for label, ns in found.items() if label is not _IDLE), np.zeros(len(x), dtype=np.int64))
    idle = np.array([
        sum(max(0, min(int(b), p.end) - max(int(a), p.start)) for p in _cut(made) if p.label is _IDLE)
        for a, b in zip(x, y, strict=True)
    ])  # fmt: skip
    assert np.all(np.abs((y - x) - labelled - idle) <= len(Part))


def test_the_regression_is_not_moved_by_many_slow_passes() -> None:
    """Four in ten passes that take twice as long leave the law where it was."""
    rng = np.random.default_rng(1)
    units = rng.integers(10, 500, 400).astype(np.float64)
    took = (1e6 + 20_000 * units) * np.where(rng.random(400) < 0.4, 2.0, 1.0) * rng.normal(1, 0.03, 400)
    law = fit(units, units * units, np.ones(400), took, padded=False)
    predicted = law.predict(np.array([100.0]), np.array([1e4]), np.array([1.0]))[0]
    assert predicted == pytest.approx(3e6, rel=0.08)


def test_a_window_keeps_only_its_time(tmp_path: Path) -> None:
    """Requests before and after are not in it, and each of its own knows its pass."""
    with small_store(tmp_path, requests=600) as store:
        whole = take(store)
        middle = int(np.median(whole.requests.at_us))
        part = take(store, since_us=middle)
    assert 0 < len(part.requests) < len(whole.requests)
    assert part.requests.at_us.min() >= middle
    assert (part.requests.batch >= 0).mean() > 0.95


def test_explain_splits_a_requests_own_pass_as_the_diagnosis_does(tmp_path: Path) -> None:
    """To within rounding, and it adds up to what the pass took."""
    write_fleet(tmp_path, requests=800, per_s=2_000.0)
    explainer = Explainer(Logs.load([tmp_path]))
    with open_store([tmp_path]) as store:
        window = take(store)
        attribution = attribute(window)
        numbers = [int(i) for i in np.flatnonzero(window.requests.batch >= 0)[::40]]
        for i, request_id in zip(numbers, ids(store, window, numbers), strict=True):
            told = explainer.explain(request_id)
            parts = {part.name: part.ns for part in told.segments}
            assert sum(told.own_pass.values()) == sum(parts.get(name, 0) for name in ("collate", "forward", "post"))
            for label in (Spent.OWN_COMPUTE, Spent.BATCH_MATES, Spent.PADDING):
                # The law is that of all workers there, of one worker here.
                assert told.own_pass[label.value] == pytest.approx(attribution.spent[label][i], rel=0.3, abs=1.5e6)
