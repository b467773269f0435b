"""The ordering policy: the queue whose oldest request has waited longest goes first."""

from hypothesis import given
from hypothesis import strategies as st

from shared.policy.batching import Waiting
from shared.policy.ordering import oldest_first


def queue_of(*arrivals: int) -> list[Waiting]:
    return [Waiting(f"r-{at}", 1, 1, None, at, 1 << 62) for at in sorted(arrivals)]


queues = st.dictionaries(
    st.text(max_size=3), st.lists(st.integers(0, 1000), max_size=5).map(lambda arrivals: queue_of(*arrivals))
)


@given(queues)
def test_every_queue_with_somebody_in_it_has_its_turn(queues: dict[str, list[Waiting]]) -> None:
    """Each once; empty ones not at all."""
    order = oldest_first(queues)
    assert sorted(order) == sorted(name for name, waiting in queues.items() if waiting)


@given(queues)
def test_whoever_has_waited_longest_goes_first(queues: dict[str, list[Waiting]]) -> None:
    """By arrival of the oldest, so no model starves while another is busy."""
    arrivals = [queues[name][0].since_ns for name in oldest_first(queues)]
    assert arrivals == sorted(arrivals)


@given(queues)
def test_the_decision_changes_nothing(queues: dict[str, list[Waiting]]) -> None:
    """A policy has no effects."""
    before = {name: list(waiting) for name, waiting in queues.items()}
    oldest_first(queues)
    assert queues == before


def test_the_order_by_example() -> None:
    """The length of a queue does not matter, the age of its head does."""
    assert oldest_first({"long": queue_of(5, 6, 7, 8), "old": queue_of(1), "empty": [], "new": queue_of(9)}) == [
        "old",
        "long",
        "new",
    ]
