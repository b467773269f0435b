"""Our request headers: what each value means, and that a wrong one is told."""

import pytest

from gateway.headers import budget_of, idempotency_key_of, preferences_of, priority_of
from shared.errors import BadRequest, ErrorKind
from shared.keys import HIGH, LOW, NORMAL


@pytest.mark.parametrize(
    ("headers", "parameter", "lane"),
    [
        ({}, 0, NORMAL),
        ({}, 1, HIGH),
        ({}, 2, NORMAL),
        ({}, 3, LOW),
        ({}, 2**62, LOW),
        ({"x-request-priority": "1"}, 0, HIGH),
        ({"x-request-priority": "High"}, 3, HIGH),
        ({"x-request-priority": " normal "}, 1, NORMAL),
        ({"x-request-priority": "3"}, 1, LOW),
    ],
)
def test_a_priority_is_a_lane_and_the_header_goes_before_the_parameter(
    headers: dict[str, str], parameter: int, lane: int
) -> None:
    """0 is the default, 1 the highest; everything from 3 on is low."""
    assert priority_of(headers, parameter) == lane


@pytest.mark.parametrize("value", ["", "0", "4", "urgent", "1.0", "-1"])
def test_a_wrong_priority_is_refused(value: str) -> None:
    """With the three that there are."""
    with pytest.raises(BadRequest, match="1 or high, 2 or normal, 3 or low"):
        priority_of({"x-request-priority": value})


def test_the_shortest_limit_is_the_deadline() -> None:
    """Triton's parameter ends in its own error, the others in ours."""
    assert budget_of({}, None, 60) == (60 * 10**9, ErrorKind.DEADLINE)
    assert budget_of({}, 5_000, 60) == (5_000_000, ErrorKind.QUEUE_TIMEOUT)
    assert budget_of({"x-request-timeout-ms": "2.5"}, 5_000, 60) == (2_500_000, ErrorKind.DEADLINE)
    assert budget_of({"x-request-timeout-ms": "1e9"}, 120_000_000, 60) == (60 * 10**9, ErrorKind.DEADLINE)


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "inf", "1e13"])
def test_a_wrong_timeout_is_refused(value: str) -> None:
    """It must be a number of milliseconds above 0."""
    with pytest.raises(BadRequest, match="x-request-timeout-ms"):
        budget_of({"x-request-timeout-ms": value}, None, 60)


@pytest.mark.parametrize("key", ["a", "order 17/b", "~" * 255])
def test_an_idempotency_key_is_printable_ascii(key: str) -> None:
    """Up to 255 characters of it."""
    assert idempotency_key_of({"Idempotency-Key": key}) == key


@pytest.mark.parametrize("key", ["", "a" * 256, "a\tb", "schlüssel"])
def test_another_idempotency_key_is_refused(key: str) -> None:
    """And none is none."""
    assert idempotency_key_of({}) == ""
    with pytest.raises(BadRequest, match="1 to 255 printable ASCII"):
        idempotency_key_of({"Idempotency-Key": key})


def test_preferences_are_read_as_rfc_7240_writes_them() -> None:
    """Names in any case, values with or without quotes, parameters ignored, the first of two counts."""
    assert preferences_of({}) == {}
    assert preferences_of({"Prefer": 'Respond-Async, wait="10";x=1, wait=3, , foo'}) == {
        "respond-async": "", "wait": "10", "": "", "foo": "",
    }  # fmt: skip
