"""The batching policy: a free device never waits without being asked to, and nobody is forgotten or overtaken."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.policy.batching import BatchLimits, CloseReason, Dispatch, Idle, Waiting, WaitUntil, decide, overdue

MS = 1_000_000


def waiting(
    *sizes: int, cost: int = 1, keys: Sequence[Any] = (), since_ns: int = 0, deadline_at_ns: int = 1 << 62
) -> list[Waiting]:
    """Requests of these rows, oldest first; request i came i ms after `since_ns`."""
    return [
        Waiting(f"r-{i}", rows, cost, keys[i] if keys else "k", since_ns + i * MS, deadline_at_ns)
        for i, rows in enumerate(sizes)
    ]


def dispatched(queue: Sequence[Waiting], limits: BatchLimits, *, now_ns: int = 0, draining: bool = False) -> Dispatch:
    """The batch that a free device is given."""
    decision = decide(queue, device_free=True, now_ns=now_ns, limits=limits, draining=draining)
    assert isinstance(decision, Dispatch)
    return decision


def ids(decision: Dispatch) -> list[str]:
    return [w.id for w in decision.batch]


@st.composite
def queues(draw: st.DrawFn) -> list[Waiting]:
    """Requests of any size, cost and key, in order of arrival."""
    sizes = draw(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 500), st.sampled_from("abc")), max_size=30))
    since = sorted(draw(st.lists(st.integers(0, 100 * MS), min_size=len(sizes), max_size=len(sizes))))
    return [
        Waiting(f"r-{i}", rows, cost, key, at_ns, 1 << 62)
        for i, ((rows, cost, key), at_ns) in enumerate(zip(sizes, since, strict=True))
    ]


limits_of_any_kind = st.builds(
    BatchLimits,
    rows_max=st.integers(1, 16),
    cost_max=st.sampled_from([0, 1, 100, 1000]),
    linger_ns=st.sampled_from([0, 1, 5 * MS]),
    preferred_rows=st.sampled_from([(), (4,), (2, 8)]),
)
instants = st.integers(0, 200 * MS)


# -- what holds for every queue, every limit and every instant -------------------------------------------------------


@given(queues(), limits_of_any_kind, instants, st.booleans())
def test_a_batch_is_within_the_limits_or_a_single_request(
    queue: list[Waiting], limits: BatchLimits, now_ns: int, draining: bool
) -> None:
    """Rows and cost stay within the limits; only one that is too large by itself goes beyond, and it goes alone."""
    match decide(queue, device_free=True, now_ns=now_ns, limits=limits, draining=draining):
        case Dispatch(batch) if len(batch) > 1:
            assert sum(w.rows for w in batch) <= limits.rows_max
            assert not limits.cost_max or sum(w.cost for w in batch) <= limits.cost_max


@given(queues(), limits_of_any_kind, instants, st.booleans())
def test_the_oldest_request_is_always_in_the_next_batch(
    queue: list[Waiting], limits: BatchLimits, now_ns: int, draining: bool
) -> None:
    """So nobody waits for ever, whatever comes behind."""
    match decide(queue, device_free=True, now_ns=now_ns, limits=limits, draining=draining):
        case Dispatch(batch):
            assert batch[0] is queue[0]


@given(queues(), limits_of_any_kind, instants, st.booleans())
def test_a_batch_is_what_waits_first_of_one_key(
    queue: list[Waiting], limits: BatchLimits, now_ns: int, draining: bool
) -> None:
    """Within a key nobody is overtaken: the batch is the beginning of its key's queue, in order."""
    match decide(queue, device_free=True, now_ns=now_ns, limits=limits, draining=draining):
        case Dispatch(batch):
            same_key = [w for w in queue if w.key == queue[0].key]
            assert list(batch) == same_key[: len(batch)]


@given(queues(), limits_of_any_kind)
def test_serving_a_queue_to_its_end_runs_everybody_once(queue: list[Waiting], limits: BatchLimits) -> None:
    """Nothing is lost, nothing repeated, and within a key the order of arrival is the order of service."""
    left, served, now_ns = list(queue), [], 0
    while left:
        match decide(left, device_free=True, now_ns=now_ns, limits=limits):
            case Dispatch(batch):
                served += batch
                left = [w for w in left if w not in batch]
            case WaitUntil(at_ns):
                assert at_ns > now_ns, "waiting must end"
                now_ns = at_ns
            case Idle():
                raise AssertionError("a free device idles while work is queued")
    assert Counter(w.id for w in served) == Counter(w.id for w in queue)
    for key in "abc":
        assert [w for w in served if w.key == key] == [w for w in queue if w.key == key]


@given(queues(), limits_of_any_kind, instants, st.booleans())
def test_a_free_device_waits_only_for_a_model_that_lingers(
    queue: list[Waiting], limits: BatchLimits, now_ns: int, draining: bool
) -> None:
    """Without linger, or when the worker stops, whoever waits is dispatched now."""
    decision = decide(queue, device_free=True, now_ns=now_ns, limits=limits, draining=draining)
    if queue and (not limits.linger_ns or draining):
        assert isinstance(decision, Dispatch)
    assert isinstance(decision, Idle) == (not queue)


@given(queues(), limits_of_any_kind, instants)
def test_lingering_is_bounded_by_the_oldest_request(queue: list[Waiting], limits: BatchLimits, now_ns: int) -> None:
    """The wait ends `linger_ns` after the oldest came, in the future; at that instant there is a batch."""
    match decide(queue, device_free=True, now_ns=now_ns, limits=limits):
        case WaitUntil(at_ns):
            assert at_ns == queue[0].since_ns + limits.linger_ns
            assert at_ns > now_ns
            assert ids(dispatched(queue, limits, now_ns=at_ns))
            assert dispatched(queue, limits, now_ns=at_ns).reason is CloseReason.LINGER


@given(queues(), limits_of_any_kind, instants, st.booleans())
def test_the_reason_says_why_nobody_else_is_in_the_batch(
    queue: list[Waiting], limits: BatchLimits, now_ns: int, draining: bool
) -> None:
    """Each reason is checked against what it claims."""
    match decide(queue, device_free=True, now_ns=now_ns, limits=limits, draining=draining):
        case Dispatch(batch, reason):
            rows, cost = sum(w.rows for w in batch), sum(w.cost for w in batch)
            others = [w for w in queue if w not in batch]
            joinable = [w for w in others if w.key == batch[0].key]
            match reason:
                case CloseReason.FULL:
                    assert rows >= limits.rows_max or rows + joinable[0].rows > limits.rows_max
                case CloseReason.BUDGET:
                    assert cost + joinable[0].cost > limits.cost_max > 0
                case CloseReason.KEY:
                    assert others
                    assert not joinable
                case CloseReason.IDLE:
                    assert not others
                    assert not limits.linger_ns
                case CloseReason.PREFERRED:
                    assert rows in limits.preferred_rows
                    assert not others
                case CloseReason.LINGER:
                    assert now_ns >= queue[0].since_ns + limits.linger_ns
                    assert not others
                case CloseReason.DRAIN:
                    assert draining
                    assert not others


@given(queues(), limits_of_any_kind, instants)
def test_a_busy_device_is_given_nothing(queue: list[Waiting], limits: BatchLimits, now_ns: int) -> None:
    """What waits while the device computes may still join the next batch."""
    assert decide(queue, device_free=False, now_ns=now_ns, limits=limits) == Idle()


@given(queues(), limits_of_any_kind, instants)
def test_the_same_inputs_give_the_same_decision(queue: list[Waiting], limits: BatchLimits, now_ns: int) -> None:
    """A recorded run can be decided again."""
    first = decide(queue, device_free=True, now_ns=now_ns, limits=limits)
    assert decide(tuple(queue), device_free=True, now_ns=now_ns, limits=limits) == first


@given(queues(), instants)
def test_the_overdue_are_those_whose_deadline_has_come(queue: list[Waiting], now_ns: int) -> None:
    """At the deadline itself it is too late: nobody waits any more."""
    late = [Waiting(w.id, w.rows, w.cost, w.key, w.since_ns, w.since_ns) for w in queue]
    assert overdue(late, now_ns) == [w for w in late if w.since_ns <= now_ns]
    assert overdue(queue, now_ns) == []


# -- by example --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queue", "limits", "batch", "reason"),
    [
        pytest.param(waiting(1), BatchLimits(8), 1, "idle", id="a lone request runs at once"),
        pytest.param(waiting(1, 1, 1), BatchLimits(8), 3, "idle", id="all that wait run together"),
        pytest.param(waiting(1, 1, 1), BatchLimits(2), 2, "full", id="no row more fits"),
        pytest.param(waiting(3, 3, 1), BatchLimits(5), 1, "full", id="nobody overtakes the one that does not fit"),
        pytest.param(waiting(1, 1), BatchLimits(1), 1, "full", id="a model without a batch dimension"),
        pytest.param(waiting(9, 1), BatchLimits(8), 1, "full", id="too large by itself: alone"),
        pytest.param(waiting(1, 1, 1, cost=40), BatchLimits(8, cost_max=100), 2, "budget", id="the budget is used up"),
        pytest.param(
            waiting(1, 1, cost=500), BatchLimits(8, cost_max=100), 1, "budget", id="too dear by itself: alone"
        ),
        pytest.param(waiting(1, 1, 1, keys="aba"), BatchLimits(8), 2, "key", id="the others have another key"),
        pytest.param(waiting(1, cost=500), BatchLimits(8, cost_max=100), 1, "idle", id="too dear, and nobody else"),
    ],
)
def test_a_batch_and_its_reason(queue: list[Waiting], limits: BatchLimits, batch: int, reason: str) -> None:
    """The rule by example."""
    decision = dispatched(queue, limits)
    assert (len(decision.batch), decision.reason) == (batch, reason)


def test_a_lingering_model_waits_for_company() -> None:
    """Until its oldest request has waited long enough; a preferred size or a full batch ends the wait."""
    limits = BatchLimits(8, linger_ns=5 * MS, preferred_rows=(4,))
    assert decide(waiting(1), device_free=True, now_ns=0, limits=limits) == WaitUntil(5 * MS)
    assert dispatched(waiting(1), limits, now_ns=5 * MS).reason is CloseReason.LINGER
    assert dispatched(waiting(2, 2), limits).reason is CloseReason.PREFERRED
    assert decide(waiting(2, 3), device_free=True, now_ns=0, limits=limits) == WaitUntil(5 * MS)
    assert dispatched(waiting(4, 4), limits).reason is CloseReason.FULL
    assert dispatched(waiting(1), limits, draining=True).reason is CloseReason.DRAIN


def test_waiting_for_company_that_cannot_come_is_pointless() -> None:
    """Somebody with another key is behind: the device would be kept from both."""
    assert dispatched(waiting(1, 1, keys="ab"), BatchLimits(8, linger_ns=MS)).reason is CloseReason.KEY


@pytest.mark.parametrize("wrong", [{"rows_max": 0}, {"rows_max": 1, "cost_max": -1}, {"rows_max": 1, "linger_ns": -1}])
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, int]) -> None:
    """When they are made, not when they first matter."""
    with pytest.raises(ValueError, match="rows_max must be at least 1"):
        BatchLimits(**wrong)
