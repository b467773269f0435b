"""Which requests share an entry of the queue: a parcel, run in one pass, answered at once.

Theory of operation. A request costs the queue some tenths of a millisecond, all processes together, whatever the model
costs. Where the model takes less than that, requests that came in one tick of the loop and would meet in one pass
anyway travel as one: one record, one entry, one lease, one answer. A parcel is a fast path and nothing else: what is
unusual (it was refused, delivered twice, overdue, one of it failed in a way that may pass) ends it, its requests are
handed over one by one, each with its own attempts and its own end, and for a while no parcels are made for that model.
So nothing in the protocol knows what is in a parcel, and no request pays for another in it.

The price: a parcel that waits is withdrawn only when nobody waits for any of it. So none are made while answers keep
people waiting, and none for requests whose deadline is near.
"""

from collections.abc import Sequence

from gateway.pending import Pending
from shared import wire

CHEAP_NS = 500_000
"""A model that takes less than this for a request is cheaper than the queue."""
STALLED_NS = 50_000_000
"""Something is wrong, or slow, when requests are pending and there was no answer for so long."""
PAUSE_NS = 10_000_000_000
REQUESTS_MAX = 32
MEMBER_BYTES_MAX = 4096
BUDGET_MIN_NS = 1_000_000_000
"""A request with less time left travels alone."""
WEIGHT = 0.2
"""How fast the mean follows."""


def company_of(model: wire.ModelDescriptor) -> int:
    """How many requests of one row may share a pass of the model, and a parcel; 1: none.

    Only requests that cost the same: where lengths vary the worker has to choose who goes with whom.
    """
    if any(spec.datatype == "BYTES" or min(spec.shape, default=0) < 0 for spec in model.inputs):
        return 1
    return model.max_batch_size


class Pace:
    """How fast a queue answers: learnt from its answers."""

    __slots__ = ("_heard_ns", "_not_before_ns", "_takes_ns", "pending")

    def __init__(self) -> None:
        self.pending = 0
        """Requests of this gateway that wait for their answer."""
        self._takes_ns = float(CHEAP_NS)
        self._heard_ns = 0
        self._not_before_ns = 0

    def begin(self, now_ns: int) -> None:
        """A request more is pending."""
        if not self.pending:
            self._heard_ns = now_ns
        self.pending += 1

    def learn(self, stamps: wire.WorkerStamps, now_ns: int) -> None:
        """An answer came."""
        takes_ns = (stamps.w7 - stamps.w4) / max(1, stamps.batch_requests)
        self._takes_ns += WEIGHT * (takes_ns - self._takes_ns)
        self._heard_ns = now_ns

    def pause(self, now_ns: int) -> None:
        """A parcel did not go well."""
        self._not_before_ns = now_ns + PAUSE_NS

    def pays(self, now_ns: int) -> bool:
        """Whether parcels are to be made now."""
        return (
            self._takes_ns < CHEAP_NS
            and now_ns >= self._not_before_ns
            and now_ns - self._heard_ns < STALLED_NS + self.pending * CHEAP_NS
        )


def grouped(ps: Sequence[Pending], now_ns: int) -> list[list[Pending]]:
    """Who travels with whom, in order of arrival; a group of one travels as it is."""
    groups: list[list[Pending]] = []
    open_groups: dict[tuple[str, int], list[Pending]] = {}
    for p in ps:
        if p.company < 2 or len(p.payload) > MEMBER_BYTES_MAX or p.deadline_at_ns - now_ns < BUDGET_MIN_NS:
            groups.append([p])
            continue
        key = p.tenant.name, p.priority
        group = open_groups.get(key)
        if group is None or len(group) >= min(REQUESTS_MAX, group[0].company):
            group = open_groups[key] = []
            groups.append(group)
        group.append(p)
    return groups
