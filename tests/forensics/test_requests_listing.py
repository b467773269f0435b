"""The list of requests: which, in what order, since when."""

from pathlib import Path

import pytest
from forensics_logbook import T0_WALL_US, Logbook, req, write_gateway
from hypothesis import given
from hypothesis import strategies as st

from forensics.load import Logs
from forensics.requests import parse_since, percentile, recent, status_matches, to_json

NOW_US = T0_WALL_US + 60_000_000


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    """Three requests, 10 s apart: a quick one, a slow one that failed, one of another model."""
    book = Logbook(tmp_path)
    quick = req("req-quick", stretch=0.5)
    slow = req("req-slow", begun_ms=10_000, stretch=3, status=504, error_code="deadline")
    other = req("req-other", begun_ms=20_000, model="resnet", version="2")
    write_gateway(book, quick, slow, other)
    return Logs.load([tmp_path])


def test_requests_come_newest_first(logs: Logs) -> None:
    """What just happened is what one looks for."""
    assert [r.id for r in recent(logs, now_us=NOW_US)] == ["req-other", "req-slow", "req-quick"]
    assert [r.id for r in recent(logs, now_us=NOW_US, limit=1)] == ["req-other"]


def test_the_slowest_come_slowest_first(logs: Logs) -> None:
    """N of them, whenever they were."""
    assert [r.id for r in recent(logs, now_us=NOW_US, slowest=2)] == ["req-slow", "req-other"]


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        ({"since": "45s"}, ["req-other"]),
        ({"since": "2026-11-30T09:00:09Z"}, ["req-other", "req-slow"]),
        ({"since": T0_WALL_US + 15_000_000}, ["req-other"]),
        ({"model": "resnet"}, ["req-other"]),
        ({"model": "resnet/2"}, ["req-other"]),
        ({"model": "resnet/1"}, []),
        ({"status": "ok"}, ["req-other", "req-quick"]),
        ({"status": "5xx", "model": "minilm"}, ["req-slow"]),
    ],
)
def test_requests_are_chosen_by_time_model_and_status(logs: Logs, wanted: dict[str, str], ids: list[str]) -> None:
    """Every condition narrows the list."""
    assert [r.id for r in recent(logs, now_us=NOW_US, **wanted)] == ids  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "ago_s"), [("30s", 30), ("10m", 600), ("2h", 7_200), ("1d", 86_400), ("1.5s", 1.5), ("250ms", 0.25)]
)
def test_since_understands_durations(text: str, ago_s: float) -> None:
    """A number and its unit, counted back from now."""
    assert parse_since(text, now_us=NOW_US) == NOW_US - round(ago_s * 1_000_000)


def test_since_understands_iso_times() -> None:
    """UTC unless the text names a zone: the listing shows UTC."""
    expected = T0_WALL_US
    for text in ("2026-11-30T09:00:00", "2026-11-30 09:00:00Z", "2026-11-30T10:00:00+01:00"):
        assert parse_since(text, now_us=0) == expected


@pytest.mark.parametrize("text", ["", "10", "ten minutes", "-5m", "2026-13-01"])
def test_since_refuses_what_it_does_not_understand(text: str) -> None:
    """A misread time would silently show the wrong requests."""
    with pytest.raises(ValueError, match="neither a duration"):
        parse_since(text, now_us=NOW_US)


def test_a_mistaken_status_is_refused_even_without_requests() -> None:
    """An empty list must not hide a typo."""
    assert status_matches("500", 500)
    assert not status_matches("4xx", 500)
    assert status_matches("error", 429)
    with pytest.raises(ValueError, match="is no status"):
        recent(Logs([]), now_us=0, status="bad")


def test_a_row_sums_exactly(logs: Logs) -> None:
    """The list and the waterfall tell the same numbers."""
    for row in recent(logs, now_us=NOW_US):
        assert sum(s.ns for s in row.segments) == sum(row.classes.values()) == row.e2e_ns
        assert sum(to_json(row)["segments"].values()) == row.e2e_ns


@given(st.lists(st.integers(0, 10**12), min_size=1), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_a_value_that_so_many_do_not_exceed(values: list[int], share: float) -> None:
    """It is a time that a request really took."""
    p = percentile(values, share)
    assert p in values
    assert sum(v <= p for v in values) >= share * len(values)
    assert sum(v < p for v in values) < share * len(values)
