"""The time model in SQL gives the integers of the time model in Python, on every request."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb
import pytest
from forensics_fleet import small_store
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.load import Logs
from forensics.requests import rows
from forensics.segments_sql import CLASSES, SEGMENTS, with_segments
from forensics.store import Store
from shared.timeline import Class, Timeline, class_totals, segments

G = tuple(f"g{i}" for i in range(9))
W = tuple(f"w{i}" for i in range(9))
COLUMNS = (*G, *W, "theta_lo_ns", "theta_hi_ns", "lost_us")


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Any stamps: small ones meet often, large ones as in logs; in order or not; some, or a worker's all, missing."""
    stamps = st.lists(draw(st.sampled_from([st.integers(0, 30), st.integers(10**15, 10**15 + 10**10)])),
                      min_size=9, max_size=9)  # fmt: skip
    g, w = draw(stamps), draw(st.one_of(stamps, stamps.map(sorted), st.just([0] * 9)))
    if draw(st.booleans()):
        g = sorted(g)
    if draw(st.booleans()):
        gone = draw(st.sets(st.sampled_from([*G[1:], *W])))
        g = [0 if f"g{i}" in gone else stamp for i, stamp in enumerate(g)]
        w = [0 if f"w{i}" in gone else stamp for i, stamp in enumerate(w)]
    lo, hi = draw(st.one_of(st.just((0, 0)), st.tuples(st.integers(-40, 40), st.integers(-40, 40)),
                            st.tuples(st.integers(-(10**10), 0), st.integers(0, 10**10))))  # fmt: skip
    return Timeline(g, w, lo, hi, draw(st.one_of(st.just(0), st.integers(0, 10**7))) * 1_000)


def _told(t: Timeline) -> tuple[int, ...]:
    parts = segments(t)
    ns = dict.fromkeys(SEGMENTS, 0)
    for part in parts:
        ns[part.name] += part.ns
    totals = class_totals(parts)
    return (t.e2e_ns, *ns.values(), *(totals[kind] for kind in Class))


def _asked(connection: duckdb.DuckDBPyConnection, given: Sequence[Timeline]) -> list[tuple[int, ...]]:
    relation = ", ".join(
        f"({i}, {', '.join(map(str, (*t.g, *t.w, t.theta_lo_ns, t.theta_hi_ns, t.lost_ns // 1_000)))})"
        for i, t in enumerate(given)
    )
    typed = ", ".join(f"{name}::BIGINT AS {name}" for name in COLUMNS)
    relation = f"(SELECT i, {typed} FROM (VALUES {relation}) AS v(i, {', '.join(COLUMNS)}))"
    wanted = ", ".join(f"{name}_ns" for name in ("e2e", *SEGMENTS, *CLASSES))
    return connection.execute(f"SELECT {wanted} FROM ({with_segments(relation)}) ORDER BY i").fetchall()


@given(st.lists(timelines(), min_size=20, max_size=60))
@settings(max_examples=15)
def test_every_segment_and_class_is_equal_to_the_nanosecond(given: list[Timeline]) -> None:
    """With retries, missing stamps, no answer, withdrawals, several clocks, and stamps that contradict each other."""
    with duckdb.connect() as connection:
        assert _asked(connection, given) == [_told(t) for t in given]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Logs, Store]]:
    """The logs of a fleet on three hosts with every fate, in memory and in a store."""
    folder = tmp_path_factory.mktemp("fleet")
    with small_store(folder, hosts=3, workers=6, drift_ppm=40.0, requests=600) as store:
        yield Logs.load([folder]), store


def test_a_fleets_requests_have_the_segments_that_explain_gives_them(both: tuple[Logs, Store]) -> None:
    """The bounds between hosts included: whoever reads the log line by line and whoever asks in SQL see the same."""
    logs, store = both
    wanted = ", ".join(f"{name}_ns" for name in ("e2e", *SEGMENTS, *CLASSES))
    asked = {row[0]: row[1:] for row in store.rows(f"SELECT id, {wanted} FROM requests")}
    told = {}
    for row in rows(logs):
        ns = dict.fromkeys(SEGMENTS, 0) | {part.name: part.ns for part in row.segments}
        told[row.id] = (row.e2e_ns, *ns.values(), *(row.classes[kind] for kind in Class))
    assert asked == told
    assert len(told) == 600


def test_the_uncertainties_are_those_of_the_segments(both: tuple[Logs, Store]) -> None:
    """How far the borders of a segment may lie off is told in SQL, too."""
    logs, store = both
    columns = "hop_error_ns, theta_error_ns, unexplained_ns"
    asked = {row[0]: row[1:] for row in store.rows(f"SELECT id, {columns} FROM requests WHERE answered")}
    for row in rows(logs):
        error = {part.name: part.uncertainty_ns for part in row.segments}
        if row.id in asked:
            hop_error, theta_error, unexplained = asked[row.id]
            assert error["unexplained" if unexplained else "downlink"] == theta_error
            assert unexplained or error["uplink"] == hop_error


def test_the_fates_of_the_fleet_are_all_there(both: tuple[Logs, Store]) -> None:
    """The comparison above is worth what it compared."""
    (found,) = both[1].rows(
        "SELECT count_if(lost_attempt_ns > 0), count_if(no_answer_ns > 0), count_if(status = 429), "
        "count_if(status = 499), count(DISTINCT (clock, worker_clock)) FILTER (answered), "
        "count_if(offset_source = 'round trips') FROM requests"
    )
    assert all(count > 0 for count in found)
    assert found[4] == 3


def test_segments_sum_in_the_view(tmp_path: Path, both: tuple[Logs, Store]) -> None:
    """Not a nanosecond off, on any request."""
    sums = " + ".join(f"{name}_ns" for name in SEGMENTS)
    classes = " + ".join(f"{name}_ns" for name in CLASSES)
    assert both[1].value(f"SELECT count(*) FROM requests WHERE e2e_ns <> {sums} OR e2e_ns <> {classes}") == 0
