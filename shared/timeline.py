"""From a request's stamps to its segments: the time model of docs/architecture.md, as pure arithmetic on integers.

Theory of operation. Each segment is the difference of two neighbouring stamps on one clock; the one part that
crosses clocks is measured as a round trip minus the residence, hop = (g5 - g3) - (w8 - w1), so the sum of all
segments equals g8 - g0 to the nanosecond whatever the offset between the clocks. The offset theta = worker's clock -
gateway's clock, known to lie in [lo, hi] and exactly 0 on one host, is used only to split the hop:

    g3 --uplink--> Redis has it --stream_wait--> a worker asks for it --deliver--> w1 ... w8 --downlink--> g5

The moment Redis had it is only known to lie between g3 and g4 (or w1, if that came first); half of that gap is the
stated uncertainty of `uplink`. Time between the first delivery and the last, when a worker died with the request,
is `lost_attempt`: it ends at w1, and what is left of the way there is `stream_wait` (the last worker asked many times
while a dead one held the request, so its w0 says nothing, and the read path cannot be told apart).
Where theta is too uncertain the hop stays in one piece, called `unexplained`, less the lost attempt, which Redis' own
clock measured.

A stamp of 0 was not reached: the time until the next one that was goes to the segment that one ends.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class Class(StrEnum):
    """Where time can go. docs/architecture.md says which segment is in which class, and why."""

    QUEUE = "queue"
    COMPUTE = "compute"
    TRANSFER = "transfer"
    OVERHEAD = "overhead"


CLASS_OF: dict[str, Class] = {
    "recv": Class.TRANSFER,
    "pre": Class.OVERHEAD,
    "gw_loop": Class.OVERHEAD,
    "uplink": Class.TRANSFER,
    "stream_wait": Class.QUEUE,
    "lost_attempt": Class.OVERHEAD,
    "deliver": Class.TRANSFER,
    "pull": Class.OVERHEAD,
    "batch_wait": Class.QUEUE,
    "dispatch": Class.OVERHEAD,
    "collate": Class.COMPUTE,
    "forward": Class.COMPUTE,
    "post": Class.OVERHEAD,
    "out_loop": Class.OVERHEAD,
    "downlink": Class.TRANSFER,
    "gw_wake": Class.OVERHEAD,
    "render": Class.OVERHEAD,
    "respond": Class.TRANSFER,
    "no_answer": Class.QUEUE,  # handed over, but ended (deadline, disconnect) before a worker answered
    "unexplained": Class.OVERHEAD,
}
"""Every segment in the order of a request's life, with its class."""

THETA_UNCERTAINTY_MAX = 0.05
"""Split the hop only if the clocks' offset is known to within this share of the end-to-end time."""


# Named tuples: a gateway makes some twenty of these for each reply, and a frozen dataclass takes six times as long.
class Segment(NamedTuple):
    """A piece of a request's time: ns, and how far its borders may lie off (ns, 0 = exact)."""

    name: str
    ns: int
    uncertainty_ns: int = 0

    @property
    def kind(self) -> Class:
        """The class that this segment belongs to."""
        return CLASS_OF[self.name]


class Timeline(NamedTuple):
    """A request's stamps in ns: nine of the gateway (g0..g8), nine of the worker (w0..w8, all 0 without an answer).

    A gateway stamp that was not reached is 0. `theta_lo_ns`, `theta_hi_ns` bound worker's clock - gateway's clock.
    """

    g: Sequence[int]
    w: Sequence[int] = (0,) * 9
    theta_lo_ns: int = 0
    theta_hi_ns: int = 0
    lost_ns: int = 0

    @property
    def e2e_ns(self) -> int:
        """From the first stamp to the last one reached; g4 is beside the way: it may come after the answer."""
        g0, g1, g2, g3, _, g5, g6, g7, g8 = self.g
        return (g8 or g7 or g6 or g5 or g3 or g2 or g1 or g0) - g0


def segments(t: Timeline) -> list[Segment]:
    """Split a request's time. The segments sum to `t.e2e_ns` exactly; zero-length ones are left out.

    Only `downlink`, `uplink` and `deliver` can be negative, and only when the clocks' bounds are wrong: a clock
    finding, never hidden.
    """
    g0, g1, g2, g3, _, g5, g6, g7, g8 = t.g
    out, at = _chain(g0, (("recv", g1), ("pre", g2), ("gw_loop", g3)))
    if g5 and g3 and t.w[8]:
        out += _hop_and_worker(t)
        at = g5
    else:
        # Nobody answered. The handler stopped waiting at the next stamp there is; on a disconnect that may be g8,
        # or a g6 that came before the g5 of the withdrawal it led to.
        g5, g6 = (g6, g5) if 0 < g6 < g5 else (g5, g6)
        ended = (g5 or g6 or g7 or g8) if g3 else g5
        waited, at = _chain(at, (("no_answer" if g3 else "gw_loop", ended),))
        out += waited
    out += _chain(at, (("gw_wake", g6), ("render", g7), ("respond", g8)))[0]
    return [s for s in out if s.ns]


def _chain(at: int, stamps: Sequence[tuple[str, int]]) -> tuple[list[Segment], int]:
    """A segment up to each stamp that was reached, and the last stamp reached."""
    out = []
    for name, stamp_ns in stamps:
        if stamp_ns:
            out.append(Segment(name, stamp_ns - at))
            at = stamp_ns
    return out, at


def _hop_and_worker(t: Timeline) -> list[Segment]:
    _, w1, w2, w3, w4, w5, w6, w7, w8 = t.w
    inside, _ = _chain(
        w1,
        (
            ("pull", w2),
            ("batch_wait", w3),
            ("dispatch", w4),
            ("collate", w5),
            ("forward", w6),
            ("post", w7),
            ("out_loop", w8),
        ),
    )
    hop = _split_hop(t)
    return [
        Segment("uplink", hop.uplink_ns, hop.error_ns),
        Segment("stream_wait", hop.waited_ns, hop.error_ns if hop.waited_ns else 0),
        Segment("lost_attempt", hop.lost_ns, 0 if hop.waited_ns or not hop.lost_ns else hop.error_ns),
        Segment("deliver", hop.deliver_ns, 0 if hop.waited_ns else hop.error_ns),
        Segment("unexplained", hop.unexplained_ns, hop.theta_error_ns),
        *inside,
        Segment("downlink", hop.downlink_ns, hop.theta_error_ns),
    ]


class _Hop(NamedTuple):
    uplink_ns: int
    waited_ns: int
    lost_ns: int
    deliver_ns: int
    downlink_ns: int
    unexplained_ns: int
    error_ns: int
    theta_error_ns: int


def _split_hop(t: Timeline) -> _Hop:
    _, _, _, g3, g4, g5, _, _, _ = t.g
    w0, w1, _, _, _, _, _, _, w8 = t.w
    # Causality narrows the offset further: nothing arrives before it was sent, in either direction.
    lo = max(t.theta_lo_ns, w8 - g5)
    hi = min(t.theta_hi_ns, w1 - g3)
    if lo > hi:
        lo, hi = t.theta_lo_ns, t.theta_hi_ns
    theta = (lo + hi) // 2
    theta_error = (hi - lo + 1) // 2
    if theta_error > THETA_UNCERTAINTY_MAX * t.e2e_ns:
        hop_ns = (g5 - g3) - (w8 - w1)
        lost = max(0, min(t.lost_ns, hop_ns))
        return _Hop(0, 0, lost, 0, 0, hop_ns - lost, 0, theta_error)

    sent = g3 + theta
    has_it_latest = max(sent, min(g4 + theta, w1)) if g4 else max(sent, w1)
    has_it = (sent + has_it_latest) // 2
    error = (has_it_latest - sent + 1) // 2 + theta_error
    if t.lost_ns:
        lost = max(0, min(t.lost_ns, w1 - has_it))
        waited, deliver = max(0, w1 - has_it) - lost, min(0, w1 - has_it)
    else:
        lost = 0
        asked = max(min(w0, w1), has_it)
        waited, deliver = asked - has_it, w1 - asked
    return _Hop(has_it - sent, waited, lost, deliver, g5 + theta - w8, 0, error, theta_error)


def class_totals(parts: Sequence[Segment]) -> dict[Class, int]:
    """Nanoseconds of each class; they sum to the same total."""
    totals = dict.fromkeys(Class, 0)
    for part in parts:
        totals[part.kind] += part.ns
    return totals


def class_sums(t: Timeline) -> tuple[int, int, int, int]:
    """`class_totals` of an answered request as (queue, compute, transfer, overhead), without making the segments.

    Every reply carries these four; a property test holds them equal to `class_totals(segments(t))`.
    """
    (g0, g1, _, g3, g4, g5, _, g7, g8), (w0, w1, w2, w3, w4, w5, w6, w7, w8), theta_lo_ns, theta_hi_ns, lost_ns = t
    if (
        not (theta_lo_ns or theta_hi_ns or lost_ns)
        and w0 > 0 < g4
        and 0 < g0 <= g1 <= g3 <= w1 <= w2 <= w3 <= w4 <= w5 <= w6 <= w7 <= w8 <= g5 <= g7
    ):
        # The common case, one clock and every stamp in order: what `_split_hop` comes to when nothing is uncertain.
        latest = g3 if g4 < g3 else g4 if g4 < w1 else w1
        has_it = (g3 + latest) // 2
        asked = has_it if w0 < has_it else w0 if w0 < w1 else w1
        queue = asked - has_it + w3 - w2
        compute = w6 - w4
        transfer = (g1 - g0) + (has_it - g3) + (w1 - asked) + (g5 - w8) + (g8 - g7 if g8 else 0)
        return queue, compute, transfer, (g8 or g7) - g0 - queue - compute - transfer
    if not (g1 and g3 and g5 and g7 and all(t.w)):
        totals = class_totals(segments(t))
        return totals[Class.QUEUE], totals[Class.COMPUTE], totals[Class.TRANSFER], totals[Class.OVERHEAD]
    hop = _split_hop(t)
    queue = hop.waited_ns + w3 - w2
    compute = w6 - w4
    transfer = g1 - g0 + hop.uplink_ns + hop.deliver_ns + hop.downlink_ns + (g8 - g7 if g8 else 0)
    return queue, compute, transfer, t.e2e_ns - queue - compute - transfer
