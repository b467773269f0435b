"""The segments of a request sum to its end-to-end time, whatever the clocks do."""

from collections.abc import Sequence

from hypothesis import assume, given
from hypothesis import strategies as st

from shared.timeline import CLASS_OF, Class, Segment, Timeline, class_sums, class_totals, segments

STEP = st.integers(0, 10**10)
OFFSET = st.integers(-(10**15), 10**15)


def _cumulated(start: int, steps: Sequence[int]) -> list[int]:
    out = [start]
    for step in steps:
        out.append(out[-1] + step)
    return out


@st.composite
def journeys(draw: st.DrawFn) -> tuple[Timeline, int]:
    """A request that went to a worker and back in true time, seen by two clocks; and the true offset."""
    theta = draw(OFFSET)
    g0, g1, g2, g3 = _cumulated(10**16, draw(st.tuples(STEP, STEP, STEP)))
    has_it = g3 + draw(STEP)
    w1 = has_it + draw(STEP)
    w0 = w1 - draw(STEP)
    w = [w0, *_cumulated(w1, draw(st.tuples(*[STEP] * 7)))]
    g5, g6, g7, g8 = _cumulated(w[8] + draw(STEP), draw(st.tuples(STEP, STEP, STEP)))
    g4 = has_it + draw(STEP)
    bounds = (theta - draw(STEP), theta + draw(STEP))
    lost_ns = draw(st.one_of(st.just(0), STEP))
    stamps = tuple(stamp + theta for stamp in w)
    return Timeline((g0, g1, g2, g3, g4, g5, g6, g7, g8), stamps, *bounds, lost_ns), theta


def _ns(parts: Sequence[Segment], name: str) -> int:
    return sum(p.ns for p in parts if p.name == name)


@given(journeys())
def test_segments_sum_to_the_end_to_end_time_exactly(journey: tuple[Timeline, int]) -> None:
    """Not a nanosecond is lost or invented, with any offset between the clocks."""
    timeline, _ = journey
    parts = segments(timeline)
    assert sum(p.ns for p in parts) == timeline.e2e_ns
    assert sum(class_totals(parts).values()) == timeline.e2e_ns


@given(
    st.lists(STEP, min_size=8, max_size=8),
    st.lists(st.integers(1, 10**12), min_size=9, max_size=9).map(sorted),
    st.integers(-(10**12), 10**12),
    st.integers(0, 10**12),
    STEP,
)
def test_segments_sum_even_when_the_stamps_contradict_each_other(
    steps: list[int], w: list[int], lo: int, width: int, lost_ns: int
) -> None:
    """Clocks that drift, step or lie move time between segments, but never out of the sum."""
    g = _cumulated(10**11, steps)
    timeline = Timeline(g, w, lo, lo + width, lost_ns)
    assert sum(p.ns for p in segments(timeline)) == timeline.e2e_ns


@given(journeys())
def test_no_part_of_the_way_is_negative_when_the_bounds_hold_the_true_offset(journey: tuple[Timeline, int]) -> None:
    """A negative segment is a finding about clocks; right clocks give none."""
    timeline, theta = journey
    assert timeline.theta_lo_ns <= theta <= timeline.theta_hi_ns
    assert all(p.ns > 0 for p in segments(timeline))


@given(journeys())
def test_the_way_to_redis_is_within_its_stated_uncertainty(journey: tuple[Timeline, int]) -> None:
    """With the clocks' offset known exactly, the true arrival lies within the bounds given for uplink."""
    timeline, theta = journey
    exact = Timeline(timeline.g, timeline.w, theta, theta, timeline.lost_ns)
    parts = segments(exact)
    uplink = next((p for p in parts if p.name == "uplink"), Segment("uplink", 0))
    latest = max(0, min(exact.g[4], exact.w[1] - theta) - exact.g[3])
    assert uplink.ns - uplink.uncertainty_ns <= 0
    assert latest <= uplink.ns + uplink.uncertainty_ns + 1


@given(journeys(), st.sets(st.integers(1, 7)), st.sets(st.integers(2, 7)))
def test_segments_sum_when_some_stamps_were_not_reached(
    journey: tuple[Timeline, int], no_g: set[int], no_w: set[int]
) -> None:
    """A request that failed on its way keeps an exact account up to the last stamp it reached."""
    whole, _ = journey
    g = [0 if i in no_g else stamp for i, stamp in enumerate(whole.g)]
    w = [0 if i in no_w else stamp for i, stamp in enumerate(whole.w)]
    assume(all(stamp > 0 for i, stamp in enumerate(whole.w) if i not in no_w))
    timeline = Timeline(g, w, whole.theta_lo_ns, whole.theta_hi_ns, whole.lost_ns)
    parts = segments(timeline)
    assert sum(p.ns for p in parts) == timeline.e2e_ns
    assert all(0 < p.ns <= timeline.e2e_ns for p in parts)


@given(journeys(), st.sets(st.integers(1, 8)), st.booleans())
def test_the_four_sums_of_a_reply_are_those_of_its_segments(
    journey: tuple[Timeline, int], missing: set[int], answered: bool
) -> None:
    """The short way to the Server-Timing header gives what the long way gives, whatever stamps are missing."""
    timeline, _ = journey
    if missing and not answered:
        timeline = timeline._replace(g=tuple(0 if i in missing else stamp for i, stamp in enumerate(timeline.g)))
    totals = class_totals(segments(timeline))
    assert class_sums(timeline) == tuple(totals[kind] for kind in Class)


@given(journeys(), st.booleans(), st.booleans(), STEP)
def test_the_four_sums_are_those_of_the_segments_on_one_clock_too(
    journey: tuple[Timeline, int], polled_long: bool, late_confirmation: bool, later: int
) -> None:
    """The common case has a way of its own, whenever the worker began to ask and the hand-over was confirmed."""
    timeline, theta = journey
    g, w = list(timeline.g), [stamp - theta for stamp in timeline.w]
    if polled_long:
        w[0] = max(1, g[3] - later)
    if late_confirmation:
        g[4] = w[1] + later
    timeline = Timeline(g, w)
    totals = class_totals(segments(timeline))
    assert class_sums(timeline) == tuple(totals[kind] for kind in Class)


@given(
    st.lists(st.integers(0, 30), min_size=9, max_size=9),
    st.lists(st.integers(0, 30), min_size=9, max_size=9),
)
def test_the_four_sums_are_those_of_the_segments_whatever_the_stamps(g: list[int], w: list[int]) -> None:
    """Small numbers meet often: equal stamps, missing ones, and ones that contradict each other."""
    if not g[7] or not g[0]:
        return
    timeline = Timeline(g, w)
    totals = class_totals(segments(timeline))
    assert class_sums(timeline) == tuple(totals[kind] for kind in Class)


@given(journeys())
def test_segments_come_in_the_order_of_a_requests_life(journey: tuple[Timeline, int]) -> None:
    """A waterfall can be drawn by adding one segment after the other."""
    order = list(CLASS_OF)
    names = [p.name for p in segments(journey[0]) if p.name != "unexplained"]
    assert names == sorted(names, key=order.index)


def test_a_request_that_nobody_answered_waited_and_did_not_wake_or_respond() -> None:
    """A disconnect has no g5..g7: the time since the hand-over was once shown as `respond`, a transfer."""
    parts = segments(Timeline((10, 11, 12, 13, 14, 0, 0, 0, 999)))
    assert _ns(parts, "no_answer") == 999 - 13
    assert _ns(parts, "respond") == 0


def test_a_withdrawal_after_the_handler_went_on_makes_nothing_negative() -> None:
    """The gateway's handler woke on a disconnect (g6) and then withdrew the request (g5): `gw_wake` was negative."""
    for g3 in (0, 13):
        parts = segments(Timeline((10, 11, 12, g3, 0, 60, 55, 0, 70)))
        assert all(p.ns > 0 for p in parts)
        assert sum(p.ns for p in parts) == 60
        assert _ns(parts, "no_answer" if g3 else "gw_loop") == (42 if g3 else 43)


def test_an_error_before_the_batch_shows_no_absurd_times() -> None:
    """A worker that could not decode a request answers without w3..w7: these zeros were once subtracted."""
    parts = segments(Timeline((100, 101, 102, 103, 104, 120, 121, 122, 123), (105, 106, 107, 0, 0, 0, 0, 0, 110)))
    assert _ns(parts, "out_loop") == 3
    assert {p.name for p in parts}.isdisjoint({"batch_wait", "dispatch", "collate", "forward", "post"})


def test_time_with_a_dead_worker_is_lost_even_if_the_last_worker_was_idle_all_along() -> None:
    """The second worker began its long poll before the first took the request: that wait was once called `deliver`."""
    g = (100, 110, 120, 130, 130, 9_000, 9_001, 9_002, 9_003)
    w = (50, 8_000, 8_001, 8_002, 8_003, 8_004, 8_500, 8_501, 8_502)
    parts = segments(Timeline(g, w, lost_ns=7_800))
    assert _ns(parts, "lost_attempt") == 7_800
    assert _ns(parts, "stream_wait") == 8_000 - 130 - 7_800
    assert _ns(parts, "deliver") == 0


def test_a_late_confirmation_of_the_hand_over_does_not_lengthen_the_request() -> None:
    """XADD's reply and the answer come on two connections: g4 after g8 once made e2e longer than its segments."""
    timeline = Timeline((10, 11, 12, 13, 90, 50, 51, 52, 53), (14, 15, 16, 17, 18, 19, 20, 21, 22))
    assert timeline.e2e_ns == 43
    assert sum(p.ns for p in segments(timeline)) == 43


def test_clocks_that_are_known_too_badly_leave_the_way_in_one_piece() -> None:
    """Half a second of doubt cannot split a way of 10 ms; what is certain stays certain."""
    ms = 1_000_000
    g = [t * ms for t in (100, 101, 102, 103, 104, 143, 144, 145, 146)]
    w = [t * ms for t in (904, 905, 906, 910, 911, 912, 930, 931, 932)]
    parts = segments(Timeline(g, w, 300 * ms, 1_300 * ms))
    assert _ns(parts, "unexplained") == (143 - 103 - (932 - 905)) * ms
    assert _ns(parts, "forward") == 18 * ms
    assert _ns(parts, "stream_wait") == 0
