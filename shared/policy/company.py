"""Who shares a pass with whom, by what it costs: the arithmetic behind `composing`.

The rule that company pays. Let n requests be in the batch and N wait in all, members included. One more joins if

    N · (t0 / n - waste)  >=  n · work

Its own `work` delays the n members. Its joining fills a batch of n, and of batches of n everybody waits through N / n:
one request more in each saves a share t0 / n of a pass for each of the N. `waste` is padding that its joining causes,
which all N wait for. (Batches of n equal requests from a queue of N keep them waiting for (t0 + n · work) · (N / n + 1)
· N / 2 in sum, and the rule with waste = 0 is where that is least: n² = N · t0 / work.)

So on an idle server, N = 2, two long requests run one after the other: together both would end late. Short ones are
taken along, and with a long queue (N large) batches grow to where throughput is best. A long request is not put to many
short ones, since n · work is large, but short ones are put to a long one that has to go now.

Whom to start with, if nobody has to go: the batch with the most requests for its time. That minimises the waiting of
all (Smith's rule), so short requests go first, and `composing` bounds for how long. In a packed batch that one begins
with the least work; of a model that pads it is a window of the requests sorted by length.

All times are floats of nanoseconds; a request is known by its index in `Scene.waiting`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shared.policy.batching import BatchLimits, CloseReason, Waiting
from shared.policy.service_time import Form, Law

UNBOUNDED = float("inf")


class Scene:
    """The queue as the law sees it."""

    __slots__ = ("ahead", "crowd", "law", "lengths", "limits", "mixed", "per_row", "soonest_ns", "waiting", "works")

    def __init__(self, waiting: Sequence[Waiting], limits: BatchLimits, law: Law) -> None:
        a, b, c, packed = law.a, law.b, law.c, law.form is Form.PACKED
        key, mixed, ahead, soonest_ns = waiting[0].key, False, 0.0, waiting[0].deadline_at_ns
        lengths, per_row_work, works = [], [], []
        for w in waiting:
            rows = w.rows
            length = w.cost / rows if packed or not w.longest else w.longest
            per_row = length * (a + b * length) + c
            lengths.append(length)
            per_row_work.append(per_row)
            works.append(per_row * rows)
            ahead += per_row * rows
            if w.deadline_at_ns < soonest_ns:
                soonest_ns = w.deadline_at_ns
            if w.key != key:
                mixed = True
        self.waiting = waiting
        self.limits = limits
        self.law = law
        self.crowd = float(len(waiting))
        """N: the requests that wait, here or behind, and those that will come before they are served."""
        self.lengths: list[float] = lengths
        self.per_row: list[float] = per_row_work
        """What a row of each adds to a pass, without any padding, ..."""
        self.works: list[float] = works
        """... all its rows, ..."""
        self.ahead = ahead
        """... and all requests."""
        self.soonest_ns = soonest_ns
        """The earliest deadline."""
        self.mixed = mixed
        """They have more than one key."""


@dataclass(slots=True)
class Draft:
    """A batch in the making: members in the order they joined, the time of the pass, why nobody else joined."""

    members: list[int]
    took: float
    reason: CloseReason = CloseReason.IDLE


def by_size(scene: Scene, indices: Sequence[int]) -> list[int]:
    """In the order in which the forms look at them: the least work first; of a model that pads, the shortest."""
    sizes = scene.works if scene.law.form is Form.PACKED else scene.lengths
    return sorted(indices, key=sizes.__getitem__)


def best(scene: Scene, order: Sequence[int]) -> Draft:
    """The batch with the most requests for its time, of requests of one key in the order of `by_size`."""
    if scene.law.form is Form.PACKED:
        return _grow_packed(scene, order[0], (), order, None)
    return _best_window(scene, order)


def around(
    scene: Scene, first: int, before: Iterable[int], order: Sequence[int], left_ns: Sequence[float] | None = None
) -> Draft:
    """The batch for `first`, which has to go. `before`: whom to ask first, where order does not matter for padding.

    `left_ns`: for each request of the scene, how long the pass may take if it is to make its deadline.
    """
    if scene.law.form is Form.PACKED:
        return _grow_packed(scene, first, before, order, left_ns)
    return _grow_padded(scene, first, order, left_ns)


def time_of(scene: Scene, members: Sequence[int]) -> float:
    """How long a pass with these takes."""
    if scene.law.form is Form.PACKED:
        return scene.law.t0 + sum(scene.works[i] for i in members)
    rows = sum(scene.waiting[i].rows for i in members)
    return scene.law.t0 + rows * max(scene.per_row[i] for i in members)


# -- packed: nobody pays for the length of another ---------------------------------------------------------------------


def _grow_packed(
    scene: Scene, first: int, before: Iterable[int], order: Iterable[int], left_ns: Sequence[float] | None
) -> Draft:
    waiting, works, limits = scene.waiting, scene.works, scene.limits
    rows_max, cost_max = limits.rows_max, limits.cost_max or UNBOUNDED
    saved = scene.crowd * scene.law.t0
    members, asked, took = [first], {first, *before}, scene.law.t0 + works[first]
    reason = CloseReason.IDLE
    rows, cost, n = waiting[first].rows, waiting[first].cost, 1
    left = left_ns[first] if left_ns else UNBOUNDED
    for sorted_now, candidates in ((False, before), (True, order)):
        for i in candidates:
            if i == first or (sorted_now and i in asked):
                continue
            w, work = waiting[i], works[i]
            if n * n * work > saved:
                reason = CloseReason.PAYS_NO_MORE
                if sorted_now:
                    break  # it pays even less for those behind
                continue
            if rows + w.rows > rows_max:
                return Draft(members, took, CloseReason.FULL)
            if cost + w.cost > cost_max:
                return Draft(members, took, CloseReason.BUDGET)
            if left_ns and took + work > min(left, left_ns[i]):
                reason = CloseReason.DEADLINE
                continue
            members.append(i)
            took += work
            rows += w.rows
            cost += w.cost
            n += 1
            if left_ns:
                left = min(left, left_ns[i])
    return Draft(members, took, CloseReason.FULL if rows >= rows_max else reason)


# -- padded: everybody is as long as the longest -----------------------------------------------------------------------


def _best_window(scene: Scene, order: Sequence[int]) -> Draft:
    """Of all windows of the sorted requests that pay and keep the bounds, the one with the most requests for its time.

    For each last (longest) member the first one moves up until the window is good, and never back: a longer last member
    makes it worse for the short ones. (More members of equal length may dilute one that was too short; it is left for
    another batch.) So this takes two steps a request.
    """
    limits, t0, crowd = scene.limits, scene.law.t0, scene.crowd
    rows_max, cost_max, padded_max = limits.rows_max, limits.cost_max or UNBOUNDED, 1 + limits.padding_max
    rows_at = [scene.waiting[i].rows for i in order]
    cost_at = [scene.waiting[i].cost for i in order]
    work_at = [scene.works[i] for i in order]
    found, found_n, found_took = (0, 1), 0, 1.0
    begin = rows = useful = 0
    for end, last in enumerate(order):
        rows += rows_at[end]
        useful += cost_at[end]
        length, longest_work = scene.lengths[last], scene.per_row[last]
        while begin < end:
            computed = rows * length
            if computed <= padded_max * useful and rows <= rows_max and computed <= cost_max:
                n, work = end - begin, work_at[begin]
                if crowd * (t0 / n - (rows_at[begin] * longest_work - work)) >= n * work:
                    break
            rows -= rows_at[begin]
            useful -= cost_at[begin]
            begin += 1
        n = end - begin + 1
        took = t0 + rows * longest_work
        if n * found_took > found_n * took:
            found, found_n, found_took = (begin, end + 1), n, took
    begin, end = found
    draft = Draft(list(reversed(order[begin:end])), found_took)
    draft.reason = _why_closed(scene, order, begin, end)
    return draft


def _why_closed(scene: Scene, order: Sequence[int], begin: int, end: int) -> CloseReason:
    limits, members = scene.limits, order[begin:end]
    rows, length = sum(scene.waiting[i].rows for i in members), scene.lengths[members[-1]]
    if rows >= limits.rows_max:
        return CloseReason.FULL
    if len(members) == len(order):
        return CloseReason.IDLE
    if begin == 0:
        return CloseReason.PAYS_NO_MORE
    rows += scene.waiting[order[begin - 1]].rows
    if rows > limits.rows_max:
        return CloseReason.FULL
    if limits.cost_max and rows * length > limits.cost_max:
        return CloseReason.BUDGET
    useful = sum(scene.waiting[i].cost for i in order[begin - 1 : end])
    return CloseReason.PADDING if rows * length > (1 + limits.padding_max) * useful else CloseReason.PAYS_NO_MORE


def _grow_padded(scene: Scene, first: int, order: Sequence[int], left_ns: Sequence[float] | None) -> Draft:
    """From the place of `first` among the sorted outwards, always to the side where less is wasted."""
    waiting, per_row, works, lengths = scene.waiting, scene.per_row, scene.works, scene.lengths
    t0, crowd = scene.law.t0, scene.crowd
    draft = Draft([first], t0 + works[first])
    rows, useful = waiting[first].rows, waiting[first].cost
    length, longest_work = lengths[first], per_row[first]
    left = left_ns[first] if left_ns else UNBOUNDED
    place = order.index(first)
    down, up = place - 1, place + 1
    while down >= 0 or up < len(order):
        waste_down = waste_up = UNBOUNDED
        if down >= 0:
            waste_down = waiting[order[down]].rows * longest_work - works[order[down]]
        if up < len(order):
            waste_up = rows * (per_row[order[up]] - longest_work)
        shorter = waste_down <= waste_up
        i, waste = (order[down], waste_down) if shorter else (order[up], waste_up)
        n = len(draft.members)
        new_length, new_work = (length, longest_work) if shorter else (lengths[i], per_row[i])
        new_rows, new_useful = rows + waiting[i].rows, useful + waiting[i].cost
        new_left = min(left, left_ns[i]) if left_ns else UNBOUNDED
        refused = _refused(scene.limits, new_rows, new_rows * new_length, new_useful)
        if not refused and crowd * (t0 / n - waste) < n * works[i]:
            refused = CloseReason.PAYS_NO_MORE
        if not refused and t0 + new_rows * new_work > new_left:
            refused = CloseReason.DEADLINE
        if refused and refused is not CloseReason.DEADLINE:
            # Whoever is further on this side would waste more still.
            down, up = (-1, up) if shorter else (down, len(order))
        else:
            down, up = (down - 1, up) if shorter else (down, up + 1)
        if refused:
            draft.reason = refused
            continue
        draft.members.append(i)
        rows, useful, length, longest_work, left = new_rows, new_useful, new_length, new_work, new_left
        draft.took = t0 + rows * longest_work
    if rows >= scene.limits.rows_max:
        draft.reason = CloseReason.FULL
    return draft


def _refused(limits: BatchLimits, rows: int, computed: float, useful: int) -> CloseReason | None:
    if rows > limits.rows_max:
        return CloseReason.FULL
    if limits.cost_max and computed > limits.cost_max:
        return CloseReason.BUDGET
    if computed > (1 + limits.padding_max) * useful:
        return CloseReason.PADDING
    return None
