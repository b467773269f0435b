"""Batches by cost: what pays goes together, nobody is overtaken beyond its patience, and deadlines come first."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy.virtual_worker import MS, NEVER, CostAware, Run, real_lengths, serve

from shared import clock
from shared.policy import batching, composing
from shared.policy.batching import BatchLimits, CloseReason, Dispatch, Idle, Waiting, WaitUntil
from shared.policy.service_time import Form, Law, shape_of

CPU_PACKED = Law(Form.PACKED, 7 * MS, 0.27 * MS, 300, 0.3 * MS)
CPU_PADDED = Law(Form.PADDED, 7 * MS, 0.27 * MS, 300, 0.3 * MS)
GPU = Law(Form.PACKED, 5 * MS, 0, 0, 0.05 * MS)
KEYS = "ab"


def texts(*tokens: int, now_ns: int = 0, deadline_at_ns: int = NEVER, keys: Sequence[Any] = ()) -> list[Waiting]:
    """One text each, oldest first, a millisecond apart, the youngest now."""
    return [
        Waiting(f"r-{i}", 1, n, keys[i] if keys else None, now_ns - (len(tokens) - 1 - i) * MS, deadline_at_ns)
        for i, n in enumerate(tokens)
    ]


def decide(queue: Sequence[Waiting], law: Law | None, limits: BatchLimits, **more: Any) -> Any:
    return composing.decide(queue, **{"device_free": True, "now_ns": 0, "limits": limits, "law": law, **more})


def batch_of(queue: Sequence[Waiting], law: Law | None, limits: BatchLimits, **more: Any) -> tuple[list[int], str]:
    """The positions in the queue of those that go now, and why nobody else does."""
    decision = decide(queue, law, limits, **more)
    assert isinstance(decision, Dispatch)
    return [queue.index(w) for w in decision.batch], decision.reason.value


# -- what holds for every queue, every law, every limit and every instant --------------------------------------------


@st.composite
def queues(draw: st.DrawFn, *, min_size: int = 0, deadlines: bool = False) -> list[Waiting]:
    """Requests of any size, cost and key, in order of arrival."""
    sizes = draw(
        st.lists(
            st.tuples(st.integers(1, 4), st.integers(1, 300), st.integers(0, 2), st.sampled_from(KEYS)),
            min_size=min_size,
            max_size=30,
        )
    )
    since = sorted(draw(st.lists(st.integers(0, 100 * MS), min_size=len(sizes), max_size=len(sizes))))
    due = st.integers(0, 1000 * MS) if deadlines else st.just(NEVER)
    return [
        Waiting(f"r-{i}", rows, rows * length, key, at_ns, draw(due), longest=length * min(uneven, rows))
        for i, ((rows, length, uneven, key), at_ns) in enumerate(zip(sizes, since, strict=True))
    ]


laws = st.builds(
    Law,
    st.sampled_from(Form),
    t0=st.sampled_from([0.0, 0.1 * MS, 7.0 * MS, 100.0 * MS]),
    a=st.sampled_from([0.0, 0.001 * MS, 0.27 * MS]),
    b=st.sampled_from([0.0, 300.0]),
    c=st.sampled_from([0.0, 0.3 * MS]),
)
limits_of_any_kind = st.builds(
    BatchLimits,
    rows_max=st.integers(1, 16),
    cost_max=st.sampled_from([0, 1, 100, 1000]),
    linger_ns=st.sampled_from([0, 5 * MS]),
    preferred_rows=st.sampled_from([(), (4,), (2, 8)]),
    patience_ns=st.sampled_from([0, 10 * MS, 1000 * MS]),
    padding_max=st.sampled_from([0.0, 0.15, 2.0]),
)
instants = st.integers(100 * MS, 300 * MS)
rates = st.sampled_from([0.0, 20.0, 1000.0, 1e6])


def keeps(limits: BatchLimits, form: Form, batch: Sequence[Waiting]) -> bool:
    """Within the limits?"""
    shape = shape_of(batch)
    computed = shape.units if form is Form.PACKED else shape.rows * shape.longest
    return (
        shape.rows <= limits.rows_max
        and (not limits.cost_max or computed <= limits.cost_max)
        and (form is Form.PACKED or computed <= (1 + limits.padding_max) * shape.units * (1 + 1e-9))
    )


@given(queues(deadlines=True), laws, limits_of_any_kind, instants, rates)
def test_a_batch_is_of_one_key_and_within_the_limits_or_a_single_request(
    queue: list[Waiting], law: Law, limits: BatchLimits, now_ns: int, per_s: float
) -> None:
    """Rows, cost and padding; only one that is too large by itself goes beyond, and it goes alone."""
    match decide(queue, law, limits, now_ns=now_ns, arrivals_per_s=per_s):
        case Dispatch(batch):
            assert batch
            assert len({w.key for w in batch}) == 1
            assert len(batch) == 1 or keeps(limits, law.form, batch)
            assert [w for w in queue if w in batch] == list(batch), "oldest first, each once"


@given(queues(deadlines=True), laws, limits_of_any_kind, instants)
def test_a_free_device_waits_only_if_there_is_a_reason(
    queue: list[Waiting], law: Law, limits: BatchLimits, now_ns: int
) -> None:
    """That is a linger, or a rate at which company is due; and never while somebody else waits."""
    decision = decide(queue, law, limits, now_ns=now_ns)
    if queue and not limits.linger_ns:
        assert isinstance(decision, Dispatch)
    assert isinstance(decision, Idle) == (not queue)


@given(queues(min_size=1), laws, limits_of_any_kind, instants, rates)
def test_waiting_is_bounded(queue: list[Waiting], law: Law, limits: BatchLimits, now_ns: int, per_s: float) -> None:
    """By the linger, else by what a pass costs and by the patience, from when the oldest came; not when stopping."""
    match decide(queue, law, limits, now_ns=now_ns, arrivals_per_s=per_s):
        case WaitUntil(at_ns):
            assert now_ns < at_ns <= queue[0].since_ns + (limits.linger_ns or min(law.t0, limits.patience_ns))
            assert isinstance(decide(queue, law, limits, now_ns=at_ns, arrivals_per_s=per_s), Dispatch)
    assert isinstance(decide(queue, law, limits, now_ns=now_ns, arrivals_per_s=per_s, draining=True), Dispatch)


@given(queues(), laws, limits_of_any_kind, instants)
def test_the_predicted_time_is_that_of_the_law(
    queue: list[Waiting], law: Law, limits: BatchLimits, now_ns: int
) -> None:
    """For the batch as it goes, padding included; without a law it is 0."""
    match decide(queue, law, limits, now_ns=now_ns):
        case Dispatch(batch, _, predicted_ns):
            assert predicted_ns == pytest.approx(law.predict_ns(shape_of(batch)), rel=1e-6, abs=2)
    match decide(queue, None, limits, now_ns=now_ns):
        case Dispatch(batch, _, predicted_ns):
            assert predicted_ns == 0


@given(queues(deadlines=True), limits_of_any_kind, instants, st.booleans(), st.booleans())
def test_without_a_law_it_is_the_order_of_arrival(
    queue: list[Waiting], limits: BatchLimits, now_ns: int, draining: bool, free: bool
) -> None:
    """The same decision as that of `batching.decide`."""
    arguments = {"device_free": free, "now_ns": now_ns, "limits": limits, "draining": draining}
    assert composing.decide(queue, **arguments) == batching.decide(queue, **arguments)


@given(queues(min_size=1, deadlines=True), laws, limits_of_any_kind, instants)
def test_a_busy_device_is_given_nothing(queue: list[Waiting], law: Law, limits: BatchLimits, now_ns: int) -> None:
    """Who waits may still be in a better batch later."""
    assert decide(queue, law, limits, now_ns=now_ns, device_free=False) == Idle()


@given(queues(min_size=1), laws, limits_of_any_kind, instants)
def test_the_oldest_goes_when_its_patience_is_over(
    queue: list[Waiting], law: Law, limits: BatchLimits, now_ns: int
) -> None:
    """Whatever it costs."""
    match decide(queue, law, limits, now_ns=now_ns):
        case Dispatch(batch):
            assert batch[0] is queue[0] or now_ns < queue[0].since_ns + limits.patience_ns


@given(queues(min_size=1), laws, limits_of_any_kind, instants)
def test_the_reason_says_why_nobody_else_goes(queue: list[Waiting], law: Law, limits: BatchLimits, now_ns: int) -> None:
    """Nobody else waits, or nobody else of the key, or the limits are reached; else it is cost or padding."""
    match decide(queue, law, limits, now_ns=now_ns):
        case Dispatch(batch, reason):
            others = [w for w in queue if w not in batch]
            joinable = [w for w in others if w.key == batch[0].key]
            match reason:
                case CloseReason.IDLE | CloseReason.LINGER:
                    assert not others
                case CloseReason.KEY:
                    assert others
                    assert not joinable
                case CloseReason.FULL:
                    rows = sum(w.rows for w in batch)
                    assert rows >= limits.rows_max or any(rows + w.rows > limits.rows_max for w in joinable)
                case CloseReason.BUDGET:
                    assert any(not keeps(BatchLimits(99, limits.cost_max), law.form, [*batch, w]) for w in joinable)
                case CloseReason.PAYS_NO_MORE:
                    assert joinable
                case CloseReason.PADDING:
                    assert law.form is Form.PADDED
                    assert joinable
                case CloseReason.PREFERRED:
                    assert sum(w.rows for w in batch) in limits.preferred_rows
                case _:
                    raise AssertionError(f"no deadline is near and the worker does not stop, yet it says {reason}")


# -- deadlines -------------------------------------------------------------------------------------------------------


@given(queues(min_size=1, deadlines=True), laws, limits_of_any_kind, instants)
def test_deadlines_come_first(queue: list[Waiting], law: Law, limits: BatchLimits, now_ns: int) -> None:
    """Who can make its deadline and does not go now makes it in the next pass, or others are nearer to theirs."""
    match decide(queue, law, limits, now_ns=now_ns):
        case Dispatch(batch, _, predicted_ns):
            alone_ns = {w.id: law.predict_ns(shape_of([w])) for w in queue}
            can = [w for w in queue if now_ns + alone_ns[w.id] <= w.deadline_at_ns]
            for w in can:
                if w in batch:
                    assert now_ns + predicted_ns <= w.deadline_at_ns + 2, "its company made it late"
                elif now_ns + predicted_ns + alone_ns[w.id] > w.deadline_at_ns + 2:
                    assert min(m.deadline_at_ns for m in batch) <= w.deadline_at_ns
            if can:
                assert all(w in can for w in batch), "who is too late anyway lets the others go first"


def test_a_request_whose_deadline_is_near_goes_first() -> None:
    """With whom it can still make it: the long one would make it late, and so would all the short ones."""
    queue = texts(20, 20, 20, 250, 20, 60)
    queue[5] = Waiting("urgent", 1, 60, None, 0, 50 * MS)
    limits = BatchLimits(64, patience_ns=1000 * MS)
    indices, reason = batch_of(queue, CPU_PACKED, limits, behind=500)
    assert 5 in indices
    assert 3 not in indices
    assert len(indices) == 3
    assert reason == "deadline"


def test_who_is_too_late_anyway_does_not_hold_up_the_others() -> None:
    """It is left to its deadline, unless nobody else waits: the law could be wrong."""
    queue = [Waiting("late", 1, 250, None, 0, 20 * MS), *texts(20, 20)]
    limits = BatchLimits(64, patience_ns=0)
    assert batch_of(queue, CPU_PACKED, limits)[0] == [1, 2]
    assert batch_of(queue[:1], CPU_PACKED, limits)[0] == [0]


# -- what pays -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "law", "more", "batch", "reason"),
    [
        pytest.param([20], CPU_PACKED, {}, [0], "idle", id="a lone request runs at once"),
        pytest.param([8, 8], CPU_PACKED, {}, [0, 1], "idle", id="two short ones share the fixed cost"),
        pytest.param([250, 250], CPU_PACKED, {}, [0], "pays_no_more", id="two long ones only delay each other"),
        pytest.param([250, 8, 8, 8], CPU_PACKED, {}, [1, 2, 3], "pays_no_more", id="no long one among short ones"),
        pytest.param([20] * 16, CPU_PACKED, {}, list(range(5)), "pays_no_more", id="few of few"),
        pytest.param([20] * 16, CPU_PACKED, {"behind": 1000}, list(range(16)), "idle", id="many with many behind"),
        pytest.param(
            [20] * 16, CPU_PACKED, {"arrivals_per_s": 500.0}, list(range(16)), "idle", id="many near saturation"
        ),
        pytest.param([250] * 8, GPU, {"behind": 500}, list(range(8)), "idle", id="all that cost next to nothing"),
        pytest.param([20, 200, 21, 220], CPU_PADDED, {}, [0, 2], "pays_no_more", id="padded: those of equal length"),
        pytest.param([20, 60], CPU_PADDED, {}, [0], "pays_no_more", id="padded: nobody pays for another's length"),
        pytest.param([10, 10, 11, 12], CPU_PADDED, {"behind": 90}, [0, 1, 2, 3], "idle", id="padded: a bit is fine"),
    ],
)
def test_what_pays_goes_together(
    tokens: list[int], law: Law, more: dict[str, Any], batch: list[int], reason: str
) -> None:
    """On a CPU a pass costs 7 ms and a token 0.27 ms; on this GPU a pass 5 ms and a text next to nothing."""
    assert batch_of(texts(*tokens), law, BatchLimits(64, patience_ns=1000 * MS), **more) == (batch, reason)


def test_a_long_request_that_has_to_go_takes_short_ones_along() -> None:
    """They would have to wait for it anyway."""
    queue = texts(250, 8, 8, 8)
    assert batch_of(queue, CPU_PACKED, BatchLimits(64, patience_ns=0)) == ([0, 1, 2, 3], "idle")


def test_under_pressure_the_order_of_arrival_returns() -> None:
    """Those whose patience is over are asked first, in their order."""
    queue = texts(100, 20, 100, 20, 100, 20, now_ns=1000 * MS)
    limits = BatchLimits(64, cost_max=250, patience_ns=0)
    assert batch_of(queue, CPU_PACKED, limits, now_ns=1000 * MS, behind=200) == ([0, 1, 2, 3], "budget")


def test_the_patience_is_no_longer_than_half_the_queue() -> None:
    """In a short queue nobody is overtaken for long, however patient the limits are."""
    queue = texts(250, 8, 8, now_ns=60 * MS)
    limits = BatchLimits(64, patience_ns=10_000 * MS)
    assert batch_of(queue, CPU_PACKED, limits, now_ns=60 * MS)[0] == [1, 2]
    assert 0 in batch_of(queue, CPU_PACKED, limits, now_ns=120 * MS)[0]


def test_a_batch_is_cut_back_to_a_preferred_size() -> None:
    """A model asks for it because its passes of these sizes are fast."""
    limits = BatchLimits(64, preferred_rows=(4, 8))
    assert batch_of(texts(*[10] * 7), CPU_PACKED, limits, behind=500) == ([0, 1, 2, 3], "preferred")
    assert batch_of(texts(*[10] * 3), CPU_PACKED, limits, behind=500) == ([0, 1, 2], "idle")


def test_a_model_that_lingers_lingers() -> None:
    """As without a law: until the oldest has waited long enough; preferred sizes and a stop end it."""
    limits = BatchLimits(64, linger_ns=5 * MS, preferred_rows=(4,))
    assert decide(texts(10), CPU_PACKED, limits) == WaitUntil(5 * MS)
    assert batch_of(texts(10), CPU_PACKED, limits, now_ns=5 * MS) == ([0], "linger")
    assert batch_of(texts(10), CPU_PACKED, limits, draining=True) == ([0], "drain")
    assert batch_of(texts(2, 2, 2, 2), CPU_PACKED, limits, behind=500) == ([0, 1, 2, 3], "preferred")


def test_an_idle_device_waits_for_company_only_if_it_pays() -> None:
    """A pass of 5 ms is worth waiting a millisecond for one more, not four, and not for a fifth member."""
    limits = BatchLimits(64, patience_ns=1000 * MS)
    assert decide(texts(1), GPU, limits, arrivals_per_s=1000.0) == WaitUntil(5 * MS)
    assert isinstance(decide(texts(1), GPU, limits, arrivals_per_s=250.0), Dispatch)
    assert isinstance(decide(texts(1), GPU, limits), Dispatch), "the rate is unknown"
    now = texts(1, 1, 1, 1, 1, now_ns=2 * MS)
    assert isinstance(decide(now, GPU, limits, arrivals_per_s=1000.0, now_ns=2 * MS), Dispatch)
    assert isinstance(decide(texts(20), CPU_PACKED, limits, arrivals_per_s=45.0), Dispatch)


# -- in the course of time -------------------------------------------------------------------------------------------


@st.composite
def traffic(draw: st.DrawFn) -> list[Waiting]:
    """Bursts and gaps, short and long texts, two keys; no deadlines."""
    gaps = draw(st.lists(st.sampled_from([0, 1, 5 * MS, 30 * MS, 200 * MS]), min_size=1, max_size=60))
    at_ns, requests = 0, []
    for i, gap_ns in enumerate(gaps):
        at_ns += gap_ns
        length = draw(st.sampled_from([3, 20, 22, 60, 256]))
        requests.append(Waiting(f"r-{i:02}", 1, length, draw(st.sampled_from(KEYS)), at_ns, NEVER))
    return requests


def simulated(requests: list[Waiting], law: Law, limits: BatchLimits) -> Run:
    return serve(CostAware(limits, law=law), requests, law)


waits = given(
    traffic(),
    st.sampled_from([CPU_PACKED, CPU_PADDED, GPU]),
    st.builds(
        BatchLimits,
        rows_max=st.sampled_from([1, 4, 64]),
        cost_max=st.sampled_from([0, 300]),
        patience_ns=st.sampled_from([0, 20 * MS, 1000 * MS]),
    ),
)


@waits
def test_every_request_is_served_once(requests: list[Waiting], law: Law, limits: BatchLimits) -> None:
    """Nothing is lost, nothing is repeated."""
    run = simulated(requests, law, limits)
    assert sorted(w.id for p in run.passes for w in p.batch) == [w.id for w in requests]


@waits
def test_after_its_patience_a_request_waits_only_for_older_ones(
    requests: list[Waiting], law: Law, limits: BatchLimits
) -> None:
    """Each pass that goes without it has an older request in it."""
    for p in simulated(requests, law, limits).passes:
        for w in p.left:
            if p.began_ns >= w.since_ns + limits.patience_ns:
                assert p.batch[0].id < w.id


@waits
def test_nobody_waits_longer_than_its_patience_and_one_pass(
    requests: list[Waiting], law: Law, limits: BatchLimits
) -> None:
    """Counted from when nobody older waits any more: then at most the pass goes before it that runs already."""
    run = simulated(requests, law, limits)
    began_ns = {w.id: p.began_ns for p in run.passes for w in p.batch}
    oldest_until_ns = 0
    for w in requests:
        entitled_ns = max(w.since_ns + limits.patience_ns, oldest_until_ns)
        free_ns = max([p.ended_ns for p in run.passes if p.began_ns <= entitled_ns < p.ended_ns], default=entitled_ns)
        assert began_ns[w.id] <= free_ns
        oldest_until_ns = max(oldest_until_ns, began_ns[w.id])


@waits
def test_the_device_is_never_idle_while_somebody_waits(requests: list[Waiting], law: Law, limits: BatchLimits) -> None:
    """But for company that pays, and that for no longer than the fixed cost of a pass."""
    run = simulated(requests, law, limits)
    free_ns = 0
    for p in run.passes:
        could_ns = max(free_ns, min(w.since_ns for w in (*p.batch, *p.left)))
        assert p.began_ns - could_ns <= (0 if law is CPU_PADDED else min(law.t0, limits.patience_ns))
        free_ns = p.ended_ns


# -- what a decision costs -------------------------------------------------------------------------------------------


def queue_of(count: int, deadline_at_ns: int = NEVER) -> list[Waiting]:
    lengths = real_lengths(1)
    return texts(*(next(lengths) for _ in range(count)), deadline_at_ns=deadline_at_ns)


def cpu_us(call: Callable[[], object]) -> float:
    """CPU time of the call, the best of many: what others do on this machine is not counted."""
    best_ns = NEVER
    for _ in range(30):
        began_ns = clock.thread_cpu_ns()
        for _ in range(5):
            call()
        best_ns = min(best_ns, clock.thread_cpu_ns() - began_ns)
    return best_ns / 5_000


@pytest.mark.parametrize("patience_ns", [0, 10_000 * MS], ids=["impatient", "patient"])
@pytest.mark.parametrize("law", [CPU_PACKED, CPU_PADDED], ids=["packed", "padded"])
@pytest.mark.parametrize(("count", "us"), [(16, 100), (256, 1500), (10_000, 1500)])
def test_a_decision_is_cheap(count: int, us: float, law: Law, patience_ns: int) -> None:
    """Half the time allowed here is usual: 20-55 us for 16 that wait, 200-650 for 256, and no more for any number."""
    limits = BatchLimits(64, cost_max=512, patience_ns=patience_ns)
    queue = queue_of(count)
    assert cpu_us(lambda: decide(queue, law, limits, arrivals_per_s=40.0)) < us
    tight = queue_of(count, deadline_at_ns=300 * MS)
    assert cpu_us(lambda: decide(tight, law, limits, arrivals_per_s=40.0)) < 2 * us
