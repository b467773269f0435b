"""The Server-Timing header, ours and others'."""

import pytest

from bench.ledger import Ledger, durations, ledger_of

OURS = "queue;dur=1.000, compute;dur=2.125, transfer;dur=0.250, overhead;dur=0.500, total;dur=3.875"
OURS_NS = Ledger(1_000_000, 2_125_000, 250_000, 500_000, 3_875_000)


def test_our_header_is_read() -> None:
    """Milliseconds with three decimals become nanoseconds."""
    assert ledger_of(OURS) == OURS_NS


@pytest.mark.parametrize(
    "same",
    [
        "total;dur=3.875,overhead;dur=0.5;desc=x, transfer;dur=0.25,compute;dur=2.125,queue;dur=1",
        'cache;desc="hit, dur=9", queue ; dur = "1.0", compute;dur=2.125, transfer;desc="a;dur=7";dur=0.25,'
        " overhead;dur=0.5, total;dur=3.875",
        "Queue;dur=8, queue;dur=1, queue;dur=5, compute;DUR=2.125, transfer;dur=0.25, overhead;dur=0.5,total;dur=3.875",
    ],
)
def test_order_space_quotes_and_company_do_not_matter(same: str) -> None:
    """Names are case-sensitive, the first of a name counts, and a quoted text is no duration."""
    assert ledger_of(same) == OURS_NS


def test_without_a_total_the_parts_are_the_total() -> None:
    """Another server may leave it out."""
    ledger = ledger_of(OURS.rpartition(",")[0])
    assert ledger is not None
    assert ledger.total == 3_875_000


def test_a_negative_part_is_kept() -> None:
    """The server never hides that its clocks contradict each other, and neither do we."""
    ledger = ledger_of(OURS.replace("transfer;dur=0.250", "transfer;dur=-0.250"))
    assert ledger is not None
    assert ledger.transfer == -250_000


@pytest.mark.parametrize(
    "none", [None, "", "cache;desc=hit", "db;dur=53.2", "queue;dur=1, compute;dur=2", ";;,,=", '"']
)
def test_a_header_without_our_parts_is_no_ledger(none: str | None) -> None:
    """Other servers use the header for other things, or for none."""
    assert ledger_of(none) is None


def test_metrics_without_a_duration_are_left_out() -> None:
    """The standard's own example."""
    assert durations('miss, db;dur=53, app;dur=47.2, cache;desc="Cache Read";dur=23.2') == {
        "db": 53.0,
        "app": 47.2,
        "cache": 23.2,
    }
